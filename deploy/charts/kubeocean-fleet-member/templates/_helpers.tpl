{{- define "kubeocean.image" -}}
{{- $image := .component.image -}}
{{- with .root.Values.global.imageRegistry }}{{ . }}/{{ end -}}
{{ $image.repository }}:{{ $image.tag | default .root.Chart.AppVersion }}
{{- end }}

{{- define "kubeocean.resources" -}}
{{- if .component.resources }}
{{- toYaml .component.resources }}
{{- else if hasKey .root.Values.sizes .root.Values.size }}
{{- toYaml (index .root.Values.sizes .root.Values.size) }}
{{- else }}
{{- fail (printf "size: must be small, medium or large (got %q)" .root.Values.size) }}
{{- end }}
{{- end }}

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
