{{- define "kubeocean.clusterRole" -}}
{{- if eq .Values.namespace.name "default" }}
{{- fail "namespace.name: must not be default; use kubeocean join for that" }}
{{- end -}}
{{ if eq .Values.namespace.name "kubeocean-worker" }}kubeocean-syncer
{{- else }}kubeocean-syncer-{{ .Values.namespace.name }}{{ end }}
{{- end }}
