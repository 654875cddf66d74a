{{- define "lbg.name" -}}
{{- $name := ternary .Release.Name (printf "%s-lbg" .Release.Name) (contains "lbg" .Release.Name) -}}
{{- $name | trunc 52 | trimSuffix "-" -}}
{{- end -}}

{{- define "lbg.selector" -}}
app.kubernetes.io/name: lbg-operator
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "lbg.labels" -}}
{{ include "lbg.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: lbg
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- /* The reference of an image: dict "root" . "name" "operator" */ -}}
{{- define "lbg.image" -}}
{{- $images := .root.Values.images -}}
{{- $prefix := ternary "" (printf "%s/" (trimSuffix "/" $images.registry)) (empty $images.registry) -}}
{{- get $images .name | default (printf "%slbg-%s:%s" $prefix .name .root.Chart.AppVersion) -}}
{{- end -}}

{{- /* What a container of ours is allowed, and a pod (Kubernetes: "Pod Security Standards", restricted). */ -}}
{{- define "lbg.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "lbg.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- /* "yes" where ServiceMonitor and its kin are to be made. */ -}}
{{- define "lbg.monitored" -}}
{{- $known := .Capabilities.APIVersions.Has "monitoring.coreos.com/v1" -}}
{{- if or (eq .Values.monitoring.objects "always") (and (eq .Values.monitoring.objects "auto") $known) -}}yes{{- end -}}
{{- end -}}
