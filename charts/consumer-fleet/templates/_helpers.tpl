{{- define "consumer-fleet.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 53 | trimSuffix "-" }}
{{- end }}

{{- /* The release's name, without the chart's name if it contains it. */}}
{{- define "consumer-fleet.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 53 | trimSuffix "-" }}
{{- else if contains (include "consumer-fleet.name" .) .Release.Name }}
{{- .Release.Name | trunc 53 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "consumer-fleet.name" .) | trunc 53 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "consumer-fleet.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "consumer-fleet.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "consumer-fleet.selectorLabels" -}}
app.kubernetes.io/name: {{ include "consumer-fleet.name" . | quote }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "consumer-fleet.labels" -}}
{{- merge (include "consumer-fleet.ownLabels" . | fromYaml) (.Values.commonLabels | default dict) | toYaml }}
{{- end }}

{{- define "consumer-fleet.ownLabels" -}}
{{ include "consumer-fleet.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service | quote }}
app.kubernetes.io/part-of: consumer-fleet
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | quote }}
{{- end }}

{{- /* The whole name of an image, given as a list of the root and the image's values. */}}
{{- define "consumer-fleet.image" -}}
{{- $root := index . 0 }}
{{- with index . 1 }}
{{- with .registry | default $root.Values.imageRegistry }}{{ trimSuffix "/" . }}/{{ end }}{{ .repository }}
{{- if or .tag (not .digest) }}:{{ .tag | default $root.Chart.AppVersion }}{{ end }}
{{- with .digest }}@{{ . }}{{ end }}
{{- end }}
{{- end }}

{{- /* The ClusterRole of the drivers of Backfills. */}}
{{- define "consumer-fleet.sparkDriverRole" -}}
{{- include "consumer-fleet.fullname" . | trunc 50 | trimSuffix "-" }}-spark-driver
{{- end }}

{{- /* True if the platform gives pods their users: OpenShift's security context constraints. */}}
{{- define "consumer-fleet.platformAssignsUsers" -}}
{{- if eq (toString .Values.workers.platformAssignsUsers) "auto" }}
{{- .Capabilities.APIVersions.Has "security.openshift.io/v1" }}
{{- else }}
{{- .Values.workers.platformAssignsUsers }}
{{- end }}
{{- end }}

{{- /* Permissions of the operator in namespaces with ConsumerGroups, except those on Secrets. */}}
{{- define "consumer-fleet.rules" -}}
- apiGroups: [consumerfleet.io]
  resources: [kafkaclusters, consumergroups, retrypolicies, redrives, offsetresets]
  verbs: [get, list, watch]
- apiGroups: [consumerfleet.io]
  resources: [kafkaclusters/status, consumergroups/status, retrypolicies/status, redrives/status, offsetresets/status]
  verbs: [patch]
- apiGroups: [consumerfleet.io]
  # For the finalizers of objects with spec.deletion, of their KafkaClusters and of running OffsetResets, and for an
  # absent spec.replicas. The operator writes nothing else of them.
  resources: [consumergroups, kafkaclusters, offsetresets]
  verbs: [patch]
- apiGroups: [consumerfleet.io]
  # The operator's stored state of each object. Nobody else may write it: it decides which images and templates run.
  resources: [operatorstates]
  verbs: [get, list, watch, create, update, patch]
- apiGroups: [consumerfleet.io]
  # For spec.ttlSecondsAfterFinished.
  resources: [redrives, offsetresets]
  verbs: [delete]
- apiGroups: [consumerfleet.io]
  # For blockOwnerDeletion of children, where the API server checks this permission.
  resources: [kafkaclusters/finalizers, consumergroups/finalizers, retrypolicies/finalizers, redrives/finalizers, offsetresets/finalizers]
  verbs: [update]
- apiGroups: [apps]
  resources: [statefulsets]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [batch]
  resources: [jobs]
  verbs: [get, list, watch, create, update, delete]
- apiGroups: [""]
  resources: [configmaps, pods]
  verbs: [get, list, watch, create, patch, delete]
- apiGroups: [""]
  resources: [services]
  verbs: [get, create, patch, delete]
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, create, patch, delete]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{- /* Further permissions for Backfills: the objects, applications of Spark, and accounts for their drivers. */}}
{{- define "consumer-fleet.backfillRules" -}}
- apiGroups: [consumerfleet.io]
  resources: [backfills]
  verbs: [get, list, watch]
- apiGroups: [consumerfleet.io]
  resources: [backfills/status]
  verbs: [patch]
- apiGroups: [consumerfleet.io]
  resources: [backfills]
  verbs: [delete]
- apiGroups: [consumerfleet.io]
  resources: [backfills/finalizers]
  verbs: [update]
- apiGroups: [""]
  # Not used by the operator itself: it can grant Backfill drivers only permissions that it has.
  resources: [configmaps]
  verbs: [update]
- apiGroups: [""]
  # Accounts and permissions of Backfill drivers. Kubernetes ignores the verb use. The policy for executor pods checks
  # this permission, and lets the driver run executors with that account.
  resources: [serviceaccounts]
  verbs: [get, create, patch, use]
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, create, patch]
- apiGroups: [rbac.authorization.k8s.io]
  # To grant them the permissions on their executors, and no other role.
  resources: [clusterroles]
  resourceNames: [{{ include "consumer-fleet.sparkDriverRole" . }}]
  verbs: [bind]
- apiGroups: [sparkoperator.k8s.io]
  resources: [sparkapplications]
  verbs: [get, list, create, delete]
{{- end }}

{{- /* Questions of the console to the API server: who has a token, and what this user may read. */}}
{{- define "consumer-fleet.consoleRules" -}}
- apiGroups: [authentication.k8s.io]
  resources: [tokenreviews]
  verbs: [create]
- apiGroups: [authorization.k8s.io]
  resources: [subjectaccessreviews]
  verbs: [create]
{{- end }}

{{- /* The Lease by which installations exclude each other. The verb create cannot be limited to a name. */}}
{{- define "consumer-fleet.scopeRules" -}}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: [create]
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [consumer-fleet-operator-scope]
  verbs: [get, update]
{{- end }}

{{- /* Secrets of KafkaClusters with credentials or certificates: read by name only, never listed. */}}
{{- define "consumer-fleet.secretRules" -}}
- apiGroups: [""]
  resources: [secrets]
  verbs: [get]
{{- end }}
