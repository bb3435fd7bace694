"""The metrics test of Kubernetes AI conformance; see docs/kubernetes.md."""
