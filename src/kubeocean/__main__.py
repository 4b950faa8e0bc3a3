"""`python -m kubeocean` is the `kubeocean` command."""

import sys

if __name__ == "__main__":
    try:
        from kubeocean.cli.main import main

        main()
    except KeyboardInterrupt:
        sys.exit(130)
