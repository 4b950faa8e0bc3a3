{{- define "kubeocean.namespace" -}}
{{- if eq .Values.namespace.name "default" }}
{{- fail "namespace.name: must not be default; use kubeocean join for that" }}
{{- end -}}
{{ .Values.namespace.name | default (printf "%s-worker" (include "kubeocean.product" .)) }}
{{- end }}

{{- define "kubeocean.suffix" -}}
{{- $namespace := include "kubeocean.namespace" . -}}
{{- $own := printf "%s-worker" (include "kubeocean.product" .) -}}
{{ if ne $namespace $own }}-{{ $namespace }}{{ end }}
{{- end }}

{{- define "kubeocean.guests" -}}
{{- if not (has .Values.guests (list "privileged" "baseline" "restricted")) }}
{{- fail (printf "guests: must be privileged, baseline or restricted (got %q)" .Values.guests) }}
{{- end -}}
{{ .Values.guests }}
{{- end }}
