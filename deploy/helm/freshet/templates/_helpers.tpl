{{- define "freshet.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 50 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 50 | trimSuffix "-" }}{{ end -}}
{{- end -}}

{{- define "freshet.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "freshet.labels" -}}
{{ include "freshet.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "freshet.account" -}}
{{- if .Values.serviceAccount.create }}{{ default (include "freshet.name" .) .Values.serviceAccount.name }}{{ else }}{{ default "default" .Values.serviceAccount.name }}{{ end -}}
{{- end -}}

{{- define "freshet.trainer-account" -}}
{{- $account := .Values.trainer.serviceAccount -}}
{{- if $account.create }}{{ default (printf "%s-trainer" (include "freshet.name" .)) $account.name }}{{ else }}{{ default "default" $account.name }}{{ end -}}
{{- end -}}

{{- define "freshet.pod-security" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "freshet.container-security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "freshet.store-environment" -}}
{{- with .Values.repository.region }}
- {name: AWS_REGION, value: {{ . | quote }}}
{{- end }}
{{- with .Values.repository.endpoint }}
- {name: AWS_ENDPOINT_URL, value: {{ . | quote }}}
{{- end }}
{{- end -}}

{{- define "freshet.training-environment" -}}
- {name: HOME, value: /var/lib/freshet}
- {name: FRESHET_MIRROR, value: /var/lib/freshet/mirror}
{{- if .Values.trainer.keySecret }}
- {name: FRESHET_KEY, value: /etc/freshet/key/private.key}
{{- end }}
{{- include "freshet.store-environment" . }}
{{- end -}}

{{- define "freshet.training-environment-from" -}}
{{- if or .Values.trainer.credentialsSecret .Values.trainer.extraEnvFrom }}
envFrom:
  {{- with .Values.trainer.credentialsSecret }}
  - secretRef: {name: {{ . }}}
  {{- end }}
  {{- with .Values.trainer.extraEnvFrom }}{{ toYaml . | nindent 2 }}{{ end }}
{{- end }}
{{- end -}}

{{- define "freshet.training-mounts" -}}
- {name: state, mountPath: /var/lib/freshet}
- {name: temporary, mountPath: /tmp}
- {name: config, mountPath: /etc/freshet/train.toml, subPath: train.toml, readOnly: true}
{{- if .Values.trainer.keySecret }}
- {name: key, mountPath: /etc/freshet/key, readOnly: true}
{{- end }}
{{- with .Values.trainer.extraVolumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "freshet.training-volumes" -}}
- name: temporary
  emptyDir: {sizeLimit: 4Gi}
{{- with .Values.trainer.keySecret }}
- name: key
  secret: {secretName: {{ . }}, defaultMode: 0440}
{{- end }}
{{- with .Values.trainer.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Whole numbers without an exponent: values are floats in Helm, and 134217728 would be 1.34217728e+08. */ -}}
{{- define "freshet.number" -}}
{{- if and (kindIs "float64" .) (eq . (floor .)) }}{{ int64 . }}{{ else }}{{ . }}{{ end -}}
{{- end -}}
