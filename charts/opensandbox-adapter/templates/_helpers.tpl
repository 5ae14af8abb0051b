{{/* One adapter per cluster: its names are fixed, not made from the release's. */}}
{{- define "opensandbox-adapter.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "opensandbox-adapter.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{ include "opensandbox-adapter.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: adapter
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: ayatori-execution
{{- end }}

{{/* A digest says exactly which image, whatever its tag. */}}
{{- define "opensandbox-adapter.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ printf "%s@%s" .repository .digest }}{{ else }}{{ printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) }}{{ end }}
{{- end }}
{{- end }}

{{- define "opensandbox-adapter.subject" -}}
- kind: ServiceAccount
  name: opensandbox-adapter
  namespace: {{ .Release.Namespace }}
{{- end }}
