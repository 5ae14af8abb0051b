{{/* One adapter per cluster: its names are fixed, not made from the release's. */}}
{{- define "kubernetes-adapter.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "kubernetes-adapter.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{ include "kubernetes-adapter.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/component: adapter
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: ayatori-execution
{{- end }}

{{/* A digest says exactly which image, whatever its tag. */}}
{{- define "kubernetes-adapter.image" -}}
{{- with .Values.image -}}
{{- if .digest }}{{ printf "%s@%s" .repository .digest }}{{ else }}{{ printf "%s:%s" .repository (.tag | default $.Chart.AppVersion) }}{{ end }}
{{- end }}
{{- end }}

{{- define "kubernetes-adapter.subject" -}}
- kind: ServiceAccount
  name: kubernetes-adapter
  namespace: {{ .Release.Namespace }}
{{- end }}
