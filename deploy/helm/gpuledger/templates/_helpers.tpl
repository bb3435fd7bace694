{{- define "gpuledger.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "gpuledger.fullname" -}}
{{- $name := include "gpuledger.name" . -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 57 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 57 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 57 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "gpuledger.namespace" -}}
{{- default .Release.Namespace .Values.namespaceOverride -}}
{{- end -}}

{{- define "gpuledger.selector" -}}
app.kubernetes.io/name: {{ include "gpuledger.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: exporter
{{- end -}}

{{/* Matchers of the series of exporters: monitors set the job to the label that serviceMonitor.jobLabel names. */}}
{{- define "gpuledger.seriesSelector" -}}
{{- $job := get (include "gpuledger.selector" . | fromYaml) .Values.serviceMonitor.jobLabel -}}
{{- default (printf "job=%q" (default "gpuledger" $job)) .Values.prometheusRule.selector -}}
{{- end -}}

{{- define "gpuledger.fleetSelector" -}}
app.kubernetes.io/name: {{ include "gpuledger.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: fleet
{{- end -}}

{{/* Labels of every object, in addition to the selector labels. */}}
{{- define "gpuledger.labels" -}}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/part-of: gpuledger
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "gpuledger.image" -}}
{{- $name := .Values.image.repository -}}
{{- if .Values.image.registry }}{{ $name = printf "%s/%s" .Values.image.registry $name }}{{ end -}}
{{- if .Values.image.digest -}}
{{- printf "%s@%s" $name .Values.image.digest -}}
{{- else -}}
{{- printf "%s:%s" $name (default .Chart.AppVersion .Values.image.tag) -}}
{{- end -}}
{{- end -}}

{{- define "gpuledger.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "gpuledger.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Service account that gets permissions. Never "default", which every pod of the namespace uses. */}}
{{- define "gpuledger.ownServiceAccount" -}}
{{- if and (not .Values.serviceAccount.create) (has .Values.serviceAccount.name (list "" "default")) -}}
{{- fail "the service account \"default\" would grant permissions to every pod of the namespace; set serviceAccount.name, or disable rbac.create (or kubernetesApi.enabled) and openshift.scc.create" -}}
{{- end -}}
{{- include "gpuledger.serviceAccount" . -}}
{{- end -}}

{{/* Capabilities that the values need, without duplicates. */}}
{{- define "gpuledger.capabilities" -}}
{{- $add := list -}}
{{- if or .Values.proc.maps .Values.proc.environ }}{{ $add = append $add "SYS_PTRACE" }}{{ end -}}
{{- if .Values.proc.environ }}{{ $add = append $add "DAC_READ_SEARCH" }}{{ end -}}
{{- if .Values.driver.migMonitor }}{{ $add = append $add "SYS_ADMIN" }}{{ end -}}
{{- $given := dig "capabilities" "add" (list) .Values.containerSecurityContext -}}
{{- concat $add $given | uniq | toJson -}}
{{- end -}}

{{/* User of the exporter. Capabilities take effect only for uid 0; a privileged container gains nothing by another uid. */}}
{{- define "gpuledger.uid" -}}
{{- $needsRoot := or .Values.podResources.enabled .Values.cri.enabled .Values.driver.hostLibraries -}}
{{- if hasKey .Values.containerSecurityContext "runAsUser" -}}
{{- int64 .Values.containerSecurityContext.runAsUser -}}
{{- else if or $needsRoot (include "gpuledger.capabilities" . | fromJsonArray) -}}
0
{{- else -}}
65534
{{- end -}}
{{- end -}}

{{- define "gpuledger.containerSecurityContext" -}}
{{- $uid := include "gpuledger.uid" . | int64 -}}
{{- $context := deepCopy .Values.containerSecurityContext -}}
{{- $context = merge $context (dict "runAsUser" $uid "runAsGroup" $uid) -}}
{{- if $uid -}}
{{- $context = merge $context (dict "runAsNonRoot" true) -}}
{{- end -}}
{{- if .Values.driver.hostLibraries -}}
{{- $context = omit $context "capabilities" "allowPrivilegeEscalation" -}}
{{- $_ := set $context "privileged" true -}}
{{- else if include "gpuledger.capabilities" . | fromJsonArray -}}
{{- $capabilities := default dict $context.capabilities -}}
{{- $_ := set $capabilities "add" (include "gpuledger.capabilities" . | fromJsonArray) -}}
{{- $_ := set $context "capabilities" $capabilities -}}
{{- end -}}
{{- toYaml $context -}}
{{- end -}}

{{/* Whether an init container has to give the directory of the journal to the exporter. */}}
{{- define "gpuledger.givesJournal" -}}
{{- if and .Values.journal.enabled (include "gpuledger.uid" . | int64) }}true{{ end -}}
{{- end -}}

{{- define "gpuledger.dnsEgress" -}}
- ports:
    {{- range list 53 5353 }}
    - port: {{ . }}
      protocol: UDP
    - port: {{ . }}
      protocol: TCP
    {{- end }}
  to: {{- toYaml .Values.networkPolicy.dnsServers | nindent 4 }}
{{- end -}}

{{/* Driver environment of the exporter and of the init container that enables accounting mode. */}}
{{- define "gpuledger.driverEnv" -}}
- name: NVIDIA_VISIBLE_DEVICES
  value: {{ .Values.driver.visibleDevices | quote }}
- name: NVIDIA_DRIVER_CAPABILITIES
  value: utility
{{- if .Values.driver.migMonitor }}
- name: NVIDIA_MIG_MONITOR_DEVICES
  value: all
{{- end }}
{{- if .Values.driver.hostLibraries }}
- name: LD_LIBRARY_PATH
  value: /usr/local/nvidia/lib64
{{- end }}
{{- end -}}

{{- define "gpuledger.driverMounts" -}}
{{- if .Values.driver.hostLibraries }}
- name: driver
  mountPath: /usr/local/nvidia/lib64
  readOnly: true
{{- end }}
{{- end -}}

{{/* Scrape endpoints of the exporter's ServiceMonitor or PodMonitor. */}}
{{- define "gpuledger.endpoints" -}}
- {{- include "gpuledger.endpoint" (dict "monitor" .Values.serviceMonitor "port" .Values.service.portName) | nindent 2 }}
{{- with .Values.serviceMonitor.dcgmJob }}
{{- $job := dict "targetLabel" "job" "replacement" . }}
{{- $copy := dict "action" "labelmap" "regex" "(namespace|pod|container)" "replacement" "exported_$1" }}
{{- $monitor := deepCopy $.Values.serviceMonitor }}
{{- $changes := dict "path" "/dcgm/metrics" "honorLabels" true "dropExporterLabels" true }}
{{- $_ := set $changes "relabelings" (append $monitor.relabelings $job) }}
{{- $_ := set $changes "metricRelabelings" (prepend $monitor.metricRelabelings $copy) }}
{{- $monitor = merge $changes (omit $monitor "params") }}
- {{- include "gpuledger.endpoint" (dict "monitor" $monitor "port" $.Values.service.portName) | nindent 2 }}
{{- end }}
{{- end -}}

{{- define "gpuledger.endpoint" -}}
{{- $monitor := .monitor -}}
port: {{ .port }}
path: {{ $monitor.path }}
interval: {{ $monitor.interval }}
scrapeTimeout: {{ $monitor.scrapeTimeout }}
honorLabels: {{ $monitor.honorLabels }}
{{- with $monitor.params }}
params: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $monitor.scheme }}
scheme: {{ . }}
{{- end }}
{{- with $monitor.tlsConfig }}
tlsConfig: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $monitor.basicAuth }}
basicAuth: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if or $monitor.nodeAsInstance $monitor.dropExporterLabels $monitor.relabelings }}
relabelings:
{{- if $monitor.nodeAsInstance }}
  - sourceLabels: [__meta_kubernetes_pod_node_name]
    targetLabel: instance
{{- end }}
{{- if $monitor.dropExporterLabels }}
  - action: labeldrop
    regex: namespace|pod|container
{{- end }}
{{- with $monitor.relabelings }}
{{ toYaml . | indent 2 }}
{{- end }}
{{- end }}
{{- with $monitor.metricRelabelings }}
metricRelabelings: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Mounts from the node, each with the value that enables it. */}}
{{- define "gpuledger.mounts" -}}
{{- if .Values.config }}
- name: config
  mountPath: /etc/gpuledger
  readOnly: true
{{- end }}
{{- if .Values.webConfig.existingSecret }}
- name: web-config
  mountPath: /etc/gpuledger-web
  readOnly: true
{{- end }}
{{- if .Values.podResources.enabled }}
- name: pod-resources
  mountPath: {{ .Values.podResources.path }}
  readOnly: true
{{- end }}
{{- if .Values.cri.enabled }}
- name: cri
  mountPath: {{ dir .Values.cri.socket }}
  readOnly: true
{{- end }}
{{- if .Values.journal.enabled }}
- name: journal
  mountPath: /run/gpuledger
{{- end }}
{{- include "gpuledger.driverMounts" . | nindent 0 }}
{{- with .Values.extraVolumeMounts }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}

{{- define "gpuledger.volumes" -}}
{{- if .Values.config }}
- name: config
  configMap:
    name: {{ include "gpuledger.fullname" . }}
{{- end }}
{{- if .Values.webConfig.existingSecret }}
- name: web-config
  secret:
    secretName: {{ .Values.webConfig.existingSecret }}
{{- end }}
{{- if .Values.podResources.enabled }}
# The directory instead of the socket: the kubelet creates a new socket when it starts.
- name: pod-resources
  hostPath:
    path: {{ .Values.podResources.path }}
    type: Directory
{{- end }}
{{- if .Values.cri.enabled }}
- name: cri
  hostPath:
    path: {{ dir .Values.cri.socket }}
    type: Directory
{{- end }}
{{- if .Values.journal.enabled }}
- name: journal
  hostPath:
    path: {{ .Values.journal.hostPath }}{{ if include "gpuledger.givesJournal" . }}/{{ include "gpuledger.uid" . }}{{ end }}
    type: DirectoryOrCreate
{{- end }}
{{- if .Values.driver.hostLibraries }}
- name: driver
  hostPath:
    path: {{ .Values.driver.hostLibraries }}
    type: Directory
{{- end }}
{{- with .Values.extraVolumes }}
{{- toYaml . | nindent 0 }}
{{- end }}
{{- end -}}
