//go:build tools

// Package kwok pins the simulator of nodes; its own command is built as it is.
package kwok

import _ "sigs.k8s.io/kwok/cmd/kwok"
