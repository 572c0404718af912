{{- define "hookmq.name" -}}
{{- if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "hookmq.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "hookmq.labels" -}}
{{ include "hookmq.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "hookmq.config" -}}
version: 1
listeners:
  - {name: tcp, type: tcp, bind: "*:1883"}
  - {name: ws, type: ws, bind: "*:8083", websocket: {path: /mqtt}}
  {{- if .Values.tls.existingSecret }}
  - name: tls
    type: tls
    bind: "*:8883"
    tls: {certificate: /etc/hookmq/tls/tls.crt, key: /etc/hookmq/tls/tls.key}
  {{- end }}
  # The probes need no token, /metrics does.
  - name: health
    type: http
    bind: "*:9090"
    http: {token: {$file: /etc/hookmq/metrics/token}, public_health: true}
{{- with .Values.config.broker }}
broker:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.config.session }}
session:
  {{- toYaml . | nindent 2 }}
{{- end }}
auth:
  {{- toYaml .Values.config.auth | nindent 2 }}
authz:
  {{- toYaml .Values.config.authz | nindent 2 }}
plugins:
  - {use: storage, config: {path: /var/lib/hookmq/storage}}
  {{- if .Values.users.existingSecret }}
  - {use: auth_password, config: {path: /etc/hookmq/users/users.yaml}}
  {{- end }}
  {{- with .Values.config.plugins }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
log: {format: json}
{{- end -}}
