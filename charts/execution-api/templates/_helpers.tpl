{{- define "execution-api.labels" -}}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/part-of: ayatori-execution
{{- end }}

{{/* Match conditions: who is kept away from generated objects. The cheap tests come first. */}}
{{- define "execution-api.strangers" -}}
{{- $users := .Values.protection.exemptUsers }}
{{- range .Values.protection.adapters }}
{{- $users = append $users (printf "system:serviceaccount:%s:%s" $.Release.Namespace .) }}
{{- end -}}
- name: not-an-exempt-user
  expression: >-
    !(request.userInfo.username in {{ toJson $users }})
- name: not-in-an-exempt-group
  expression: >-
    !request.userInfo.groups.exists(group, group in {{ toJson .Values.protection.exemptGroups }})
{{ include "execution-api.mayNotIntervene" . }}
{{- end }}

{{/* A match condition, by a right and not by names: nobody who could change a policy is locked out by it. */}}
{{- define "execution-api.mayNotIntervene" -}}
# cluster-admin and system:masters hold every verb.
- name: may-not-intervene
  expression: >-
    !authorizer.group("execution.ayatori.ddupan.top").resource("jobs").namespace(request.?namespace.orValue(""))
    .check("intervene").allowed()
{{- end }}

{{/* The namespaces whose Jobs admission policies judge, for a binding. */}}
{{- define "execution-api.judgedNamespaces" -}}
{{- with .Values.admission.namespaceSelector -}}
matchResources:
  namespaceSelector:
    {{- toYaml . | nindent 4 }}
{{- end }}
{{- end }}
