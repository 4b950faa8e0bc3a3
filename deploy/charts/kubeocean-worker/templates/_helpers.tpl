{{- define "kubeocean.product" -}}
{{- $domain := .Values.labelDomain -}}
{{- $label := "[a-z0-9]([a-z0-9-]*[a-z0-9])?" -}}
{{- if not (regexMatch (printf "^%s([.]%s)*$" $label $label) $domain) }}
{{- fail (printf "labelDomain: must be a lowercase DNS subdomain (got %q)" $domain) }}
{{- end -}}
{{ splitList "." $domain | first }}
{{- end }}

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
