{{- define "kubeocean.member" -}}
{{- $name := required "name: must be the name of the MemberCluster" .Values.name | toString -}}
{{- if gt (len $name) 50 }}
{{- fail (printf "name: must have at most 50 characters (got %q)" $name) }}
{{- end -}}
{{ $name }}
{{- end }}

{{- define "kubeocean.hub" -}}
{{- required "hub.url: must be the URL of the hub's API server" .Values.hub.url -}}
{{- end }}
