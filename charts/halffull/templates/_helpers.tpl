{{- define "halffull.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "halffull.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "halffull.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "halffull.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "halffull.selector" -}}
app.kubernetes.io/name: {{ include "halffull.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- /* Not managed-by halffull-operator: that is what the operator finds its own children by. */}}
{{- define "halffull.labels" -}}
{{ include "halffull.selector" . }}
app.kubernetes.io/component: operator
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "halffull.serviceAccount" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "halffull.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- /* An image as it is written: REPOSITORY@DIGEST, or REPOSITORY:TAG with the chart's appVersion where there is none. */}}
{{- define "halffull.image" -}}
{{- if .image.digest }}
{{- printf "%s@%s" .image.repository .image.digest }}
{{- else }}
{{- printf "%s:%s" .image.repository (default .root.Chart.AppVersion .image.tag) }}
{{- end }}
{{- end }}

{{- /* The same in .Values.registry, as the operator does it with the images of what it makes. */}}
{{- define "halffull.imageInRegistry" -}}
{{- $image := include "halffull.image" . }}
{{- $registry := trimSuffix "/" .root.Values.registry }}
{{- $host := first (splitList "/" $image) }}
{{- $named := and (contains "/" $image) (or (contains "." $host) (contains ":" $host) (eq $host "localhost")) }}
{{- if or (not $registry) (hasPrefix (printf "%s/" $registry) $image) }}
{{- $image }}
{{- else }}
{{- printf "%s/%s" $registry (ternary (trimPrefix (printf "%s/" $host) $image) $image $named) }}
{{- end }}
{{- end }}

{{- /* Where the heartbeat's Lease is: here, or in the first namespace that is watched, if this one is not. */}}
{{- define "halffull.leaseNamespace" -}}
{{- $namespaces := .Values.watch.namespaces }}
{{- if or (not $namespaces) (has .Release.Namespace $namespaces) }}
{{- .Release.Namespace }}
{{- else }}
{{- first $namespaces }}
{{- end }}
{{- end }}

{{- /*
operator.yaml. What is null among the values is empty here: --set profiles=null takes the examples away. In securityContext
null means that no user is named.
*/}}
{{- define "halffull.config" -}}
{{- $images := dict }}
{{- range $name := list "vllm" "larry" "extproc" "envoy" }}
{{- $_ := set $images $name (include "halffull.image" (dict "image" (get $.Values.images $name) "root" $)) }}
{{- end }}
images:
  {{- toYaml $images | nindent 2 }}
registry: {{ .Values.registry | quote }}
imagePullSecrets: {{ default list .Values.imagePullSecrets | toJson }}
{{- range $key := list "engine" "profiles" "gateway" "initResources" }}
{{ $key }}:
  {{- default dict (get $.Values $key) | toYaml | nindent 2 }}
{{- end }}
{{- range $key := list "labels" "annotations" "podLabels" "podAnnotations" "proxy" }}
{{ $key }}: {{ default dict (get $.Values $key) | toJson }}
{{- end }}
securityContext:
  {{- range $key := list "runAsUser" "runAsGroup" "fsGroup" }}
  {{ $key }}: {{ include "halffull.integer" (get (default dict $.Values.securityContext) $key) }}
  {{- end }}
listen: {{ .Values.listen | quote }}
watch:
  namespaces: {{ default list .Values.watch.namespaces | toJson }}
{{- end }}

{{- /* A number, which Helm reads as a float, as digits; null where there is none. */}}
{{- define "halffull.integer" -}}
{{- if kindIs "invalid" . }}null{{- else if eq (toString .) "" }}null{{- else }}{{ int64 . }}{{- end }}
{{- end }}

{{- /* Security context of a pod of ours: any user, but never root. */}}
{{- define "halffull.podSecurityContext" -}}
runAsNonRoot: true
{{- range $key := list "runAsUser" "runAsGroup" "fsGroup" }}
{{- with get (default dict $.Values.securityContext) $key }}
{{ $key }}: {{ int64 . }}
{{- end }}
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "halffull.containerSecurityContext" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
