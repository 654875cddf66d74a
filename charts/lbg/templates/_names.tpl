{{- /* Of a release lbg: lbg-operator. */ -}}
{{- define "lbg.name" -}}
{{- $release := .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- if contains "lbg-operator" $release -}}
{{- $release -}}
{{- else if contains "lbg" $release -}}
{{- $release }}-operator
{{- else -}}
{{- $release }}-lbg-operator
{{- end -}}
{{- end -}}

{{- /* Of what runs on journals. With a step's name it is that of a CronJob, which may have 52 characters. */ -}}
{{- define "lbg.pipeline" -}}
{{- $release := .Release.Name | trunc 30 | trimSuffix "-" -}}
{{- if contains "lbg" $release -}}
{{- $release }}-pipeline
{{- else -}}
{{- $release }}-lbg-pipeline
{{- end -}}
{{- end -}}

{{- /* Of the console: of a release lbg, lbg-console. */ -}}
{{- define "lbg.console" -}}
{{- $release := .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- if contains "lbg" $release -}}
{{- $release }}-console
{{- else -}}
{{- $release }}-lbg-console
{{- end -}}
{{- end -}}

{{- /* The address of the console for browsers; empty if it is not known. */ -}}
{{- define "lbg.consoleUrl" -}}
{{- $console := .Values.console -}}
{{- if $console.url -}}
{{- trimSuffix "/" $console.url -}}
{{- else if and $console.enabled $console.ingress.enabled -}}
{{- ternary "http" "https" (empty $console.ingress.tlsSecretName) }}://{{ $console.ingress.host -}}
{{- end -}}
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

{{- /* The user is the image's, 65532: OpenShift gives one of its own where a pod names none, and refuses what is named. */ -}}
{{- define "lbg.podSecurity" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- /* "yes" where ServiceMonitor and its kin are to be made. */ -}}
{{- define "lbg.monitored" -}}
{{- $known := .Capabilities.APIVersions.Has "monitoring.coreos.com/v1" -}}
{{- if or (eq .Values.monitoring.objects "always") (and (eq .Values.monitoring.objects "auto") $known) -}}yes{{- end -}}
{{- end -}}

{{- /* "yes" where the operator may handle KEDA's objects: where KEDA is, or where it is said to be. */ -}}
{{- define "lbg.keda" -}}
{{- if or (eq .Values.metrics.provider "keda") (.Capabilities.APIVersions.Has "keda.sh/v1alpha1") -}}yes{{- end -}}
{{- end -}}
