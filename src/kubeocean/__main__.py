"""`python -m kubeocean` is the `kubeocean` command."""

from kubeocean.cli.main import main

if __name__ == "__main__":
    main()
