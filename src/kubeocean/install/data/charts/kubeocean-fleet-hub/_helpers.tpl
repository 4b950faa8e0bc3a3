{{- define "kubeocean.connection" -}}
{{- $type := .Values.webhookClientConnectionType -}}
{{- if not (has $type (list "service" "url")) }}
{{- fail (printf "webhookClientConnectionType: must be service or url (got %q)" $type) }}
{{- end -}}
{{ $type }}
{{- end }}
