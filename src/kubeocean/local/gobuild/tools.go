//go:build tools

// Package gobuild pins what is built but not imported by our own commands.
package gobuild

import _ "sigs.k8s.io/kwok/cmd/kwok"
