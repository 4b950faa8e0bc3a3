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
