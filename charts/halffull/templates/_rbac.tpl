{{- /*
What the operator may do, rule by rule. `tests/operator` runs with these and compares them with the verbs that the API
server's audit log shows. With watch.namespaces each namespace has a Role of them; otherwise one ClusterRole has.
*/}}
{{- define "halffull.rules" -}}
# What it serves. It writes neither spec nor metadata of an LLMServing.
- apiGroups: [serving.halffull.dev]
  resources: [llmservings]
  verbs: [get, list, watch]
# Status, by server-side apply.
- apiGroups: [serving.halffull.dev]
  resources: [llmservings/status]
  verbs: [patch]
# Children are owned with blockOwnerDeletion; where OwnerReferencesPermissionEnforcement is on (OpenShift) that needs this.
- apiGroups: [serving.halffull.dev]
  resources: [llmservings/finalizers]
  verbs: [update]
# Engines and gateways. get: whose is what has the name of a child that is to be made. create and patch: server-side apply.
# delete: what is no longer asked for, and a StatefulSet one of whose immutable fields changed (its pods stay).
- apiGroups: [apps]
  resources: [statefulsets, deployments]
  verbs: [get, list, watch, create, patch, delete]
# Services of engines and gateway, the picker's configuration and its ServiceAccount.
- apiGroups: [""]
  resources: [services, configmaps, serviceaccounts]
  verbs: [get, list, watch, create, patch, delete]
# What the picker may do, for each gateway.
- apiGroups: [rbac.authorization.k8s.io]
  resources: [roles, rolebindings]
  verbs: [get, list, watch, create, patch, delete]
# One engine, one gateway pod at a time.
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, patch, delete]
# spec.networkPolicy.
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, patch, delete]
# spec.monitoring.podMonitor, where the cluster serves the API.
- apiGroups: [monitoring.coreos.com]
  resources: [podmonitors]
  verbs: [get, list, watch, create, patch, delete]
# spec.gateway.mode: InferencePool, where the cluster serves the API. The picker's Role has get, list and watch of it too.
- apiGroups: [inference.networking.k8s.io]
  resources: [inferencepools]
  verbs: [get, list, watch, create, patch, delete]
# spec.gateway.route, where the cluster serves the API.
- apiGroups: [gateway.networking.k8s.io]
  resources: [httproutes]
  verbs: [get, list, watch, create, patch, delete]
# Why an engine is not ready: read alone. get is for the picker's Role in an InferencePool, which nobody may grant who does
# not have it.
- apiGroups: [""]
  resources: [pods]
  verbs: [get, list, watch]
# get: can engines share the claim that a model lies on. patch: a cache that grows. Never made and never deleted.
- apiGroups: [""]
  resources: [persistentvolumeclaims]
  verbs: [get, list, watch, patch]
# create: transitions of an LLMServing. list: why pods are refused (quota) or their volumes do not attach.
- apiGroups: [""]
  resources: [events]
  verbs: [create, list]
# The heartbeat's Lease is seen again through the watch, which is as wide as all the others. Who may write it: rbac.yaml.
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  resourceNames: [halffull-operator]
  verbs: [list, watch]
# Not used by the operator: the picker's Role has it, and nobody may grant what they do not have.
- apiGroups: [discovery.k8s.io]
  resources: [endpointslices]
  verbs: [get, list, watch]
{{- end }}
