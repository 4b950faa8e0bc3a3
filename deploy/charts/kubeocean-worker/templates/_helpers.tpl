{{- define "kubeocean.suffix" -}}
{{- if eq .Values.namespace.name "default" }}
{{- fail "namespace.name: must not be default; use kubeocean join for that" }}
{{- end -}}
{{ if ne .Values.namespace.name "kubeocean-worker" }}-{{ .Values.namespace.name }}{{ end }}
{{- end }}

{{- define "kubeocean.guests" -}}
{{- if not (has .Values.guests (list "privileged" "baseline" "restricted")) }}
{{- fail (printf "guests: must be privileged, baseline or restricted (got %q)" .Values.guests) }}
{{- end -}}
{{ .Values.guests }}
{{- end }}
