{{- define "kvstore.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "kvstore.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "kvstore.labels" -}}
{{ include "kvstore.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "kvstore.image" -}}
{{- $image := .root.Values.image -}}
{{- printf "%s%s:%s" $image.registry .repository (default .root.Chart.AppVersion $image.tag) -}}
{{- end -}}

{{/* What all pods have. A Service's variables, called KVSTORE_..., would look like settings. */}}
{{- define "kvstore.pod" -}}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: {{ .Values.user }}
  runAsGroup: {{ .Values.user }}
  fsGroup: {{ .Values.user }}
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- end -}}

{{- define "kvstore.confined" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{/* The folder's volume: of the pod, or of the node. */}}
{{- define "kvstore.runtime" -}}
{{- if eq .root.Values.mode "node" -}}
hostPath:
  path: {{ .root.Values.node.path }}
  type: {{ .type }}
{{- else -}}
emptyDir:
  medium: Memory
  sizeLimit: 1Mi
{{- end -}}
{{- end -}}
