{{- define "kubeocean.suffix" -}}
{{- if eq .Values.namespace.name "default" }}
{{- fail "namespace.name: must not be default; use kubeocean join for that" }}
{{- end -}}
{{ if ne .Values.namespace.name "kubeocean-worker" }}-{{ .Values.namespace.name }}{{ end }}
{{- end }}
