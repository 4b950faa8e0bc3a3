{{- define "kubeocean.product" -}}
{{- $domain := .Values.labelDomain -}}
{{- $label := "[a-z0-9]([a-z0-9-]*[a-z0-9])?" -}}
{{- if not (regexMatch (printf "^%s([.]%s)*$" $label $label) $domain) }}
{{- fail (printf "labelDomain: must be a lowercase DNS subdomain (got %q)" $domain) }}
{{- end -}}
{{ splitList "." $domain | first }}
{{- end }}
