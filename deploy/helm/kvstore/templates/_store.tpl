{{/* kvstore.toml: an unknown setting in it ends the server, where an unknown variable would not. */}}
{{- define "kvstore.settings" -}}
runtime_dir = "/run/kvstore/store"
tier1_bytes = "{{ .Values.store.tier1MiB }}MiB"
tier2_bytes = "{{ .Values.store.tier2MiB }}MiB"
device = {{ .Values.store.device | toJson }}
drain_grace = {{ .Values.store.drainGrace }}
{{- if .Values.tier3.sizeMiB }}
tier3_path = "/var/lib/kvstore/slab"
tier3_bytes = "{{ .Values.tier3.sizeMiB }}MiB"
{{- end }}
{{- if .Values.store.tenantsSecret }}
tenants_file = "/etc/kvstore-tenants/tenants.toml"
{{- end }}
{{- if .Values.store.metricsPort }}
metrics_listen = "0.0.0.0:{{ .Values.store.metricsPort }}"
{{- end }}
{{- if include "kvstore.hasHolder" . }}
holder = "/run/kvstore-holder/holder"
holder_start = false
journal_bytes = "{{ include "kvstore.journalMiB" . }}MiB"
{{- end }}
{{- with .Values.remote }}
{{- if .url }}
remote_url = {{ .url | toJson }}
remote_key_file = "/etc/kvstore-remote/key"
remote_state_dir = "/var/lib/kvstore-remote/state"
{{- if .credential }}
remote_credential_file = "/etc/kvstore-remote/credential"
{{- end }}
{{- if .authority }}
remote_ca_file = "/etc/kvstore-remote/ca.pem"
{{- end }}
{{- if .write }}
remote_write = {{ .write | toJson }}
{{- end }}
remote_insecure = {{ .insecure }}
remote_trust_uids = {{ .trustUids }}
{{- end }}
{{- end }}
{{- range $name, $value := .Values.store.settings }}
{{ $name }} = {{ $value | toJson }}
{{- end }}
{{- end -}}

{{/* Not empty if memory can outlive the store: a GPU's ends with the store's process. */}}
{{- define "kvstore.hasHolder" -}}
{{- if and .Values.holder.enabled (or (eq .Values.store.device "cpu") .Values.store.tier2MiB) -}}
yes
{{- end -}}
{{- end -}}

{{/* 1/512 of both tiers, rounded up, and at least 16. */}}
{{- define "kvstore.journalMiB" -}}
{{- $part := div (add .Values.store.tier1MiB .Values.store.tier2MiB 511) 512 -}}
{{- .Values.holder.journalMiB | default (max 16 $part) -}}
{{- end -}}

{{/*
The part of the tiers that the holder makes: ordinary pages of the host, on any NUMA node. The store
makes all others.
*/}}
{{- define "kvstore.heldMiB" -}}
{{- $settings := .Values.store.settings -}}
{{- $pages := hasKey $settings "hugepages" | ternary (toString $settings.hugepages) "off" -}}
{{- $plain := and (eq .Values.store.device "cpu") (eq $pages "off") -}}
{{- if and $plain (include "kvstore.hasHolder" .) -}}
{{- $node := hasKey $settings "tier2_numa_node" | ternary (toString $settings.tier2_numa_node) "auto" -}}
{{- $anywhere := has $node (list "auto" "off") -}}
{{- add .Values.store.tier1MiB ($anywhere | ternary .Values.store.tier2MiB 0) -}}
{{- else -}}
0
{{- end -}}
{{- end -}}

{{/* Host memory that the store makes itself, and room for the index and the process. */}}
{{- define "kvstore.storeMiB" -}}
{{- $tier1 := eq .Values.store.device "cpu" | ternary .Values.store.tier1MiB 0 -}}
{{- sub (add $tier1 .Values.store.tier2MiB .Values.store.roomMiB) (include "kvstore.heldMiB" . | int) -}}
{{- end -}}

{{/* The pages that the holder makes, the journal, and the process. */}}
{{- define "kvstore.holderMiB" -}}
{{- add (include "kvstore.heldMiB" . | int) (include "kvstore.journalMiB" . | int) 64 -}}
{{- end -}}

{{/* Keeps the store's memory while the store's container restarts, and ends with the pod. */}}
{{- define "kvstore.holder" -}}
name: holder
image: {{ include "kvstore.image" (dict "root" . "repository" .Values.image.store) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
restartPolicy: Always
command:
  - kvstore-holder
  - /run/kvstore-holder/holder
  - --holder-grace={{ .Values.holder.grace }}
resources:
  requests:
    cpu: 10m
    memory: {{ include "kvstore.holderMiB" . }}Mi
  # Pages of the host are charged to the holder, which makes them, and the journal.
  limits:
    memory: {{ include "kvstore.holderMiB" . }}Mi
{{ include "kvstore.confined" . }}
volumeMounts:
  - name: holder
    mountPath: /run/kvstore-holder
{{- end -}}

{{- define "kvstore.store" -}}
name: store
image: {{ include "kvstore.image" (dict "root" . "repository" .Values.image.store) }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
env:
  - name: KVSTORE_CONFIG_FILE
    value: /etc/kvstore/kvstore.toml
  # For kvstore-ctl and the probe, which read no file.
  - name: KVSTORE_RUNTIME_DIR
    value: /run/kvstore/store
{{- if .Values.store.metricsPort }}
ports:
  - name: metrics
    containerPort: {{ .Values.store.metricsPort }}
{{- end }}
resources:
  {{- if .Values.gpu.deviceClassName }}
  claims:
    - name: gpu
  {{- end }}
  requests:
    cpu: {{ .Values.store.cpu | quote }}
    memory: {{ include "kvstore.storeMiB" . }}Mi
  # Pages of the host that no holder makes are charged to the store, which touches them first.
  limits:
    memory: {{ include "kvstore.storeMiB" . }}Mi
livenessProbe:
  {{- if .Values.store.metricsPort }}
  httpGet:
    path: /livez
    port: metrics
  {{- else }}
  exec:
    command: [python, /opt/kvstore/bin/healthcheck.py, liveness]
  {{- end }}
  periodSeconds: 15
  timeoutSeconds: 5
  failureThreshold: 3
{{ include "kvstore.confined" . }}
volumeMounts:
  - name: runtime
    mountPath: /run/kvstore
  {{- if include "kvstore.hasHolder" . }}
  - name: holder
    mountPath: /run/kvstore-holder
  {{- end }}
  - name: settings
    mountPath: /etc/kvstore
    readOnly: true
  {{- if .Values.store.tenantsSecret }}
  - name: tenants
    mountPath: /etc/kvstore-tenants
    readOnly: true
  {{- end }}
  {{- if .Values.tier3.sizeMiB }}
  - name: slab
    mountPath: /var/lib/kvstore
  {{- end }}
  {{- if .Values.remote.url }}
  - name: remote
    mountPath: /etc/kvstore-remote
    readOnly: true
  - name: remote-state
    mountPath: /var/lib/kvstore-remote
  {{- end }}
{{- end -}}

{{- define "kvstore.storeVolumes" -}}
{{- if include "kvstore.hasHolder" . }}
# Only for the holder and the store: a process that reaches it gets the memory of all tenants.
- name: holder
  emptyDir:
    medium: Memory
    sizeLimit: 1Mi
{{- end }}
- name: settings
  configMap:
    name: {{ include "kvstore.name" . }}
{{- if .Values.store.tenantsSecret }}
- name: tenants
  secret:
    secretName: {{ .Values.store.tenantsSecret }}
    # Readable by the store's group, which is its user's alone, and by nobody else.
    defaultMode: 0440
{{- end }}
{{- if .Values.tier3.sizeMiB }}
- name: slab
  {{- if eq .Values.mode "node" }}
  hostPath:
    path: {{ .Values.tier3.nodePath }}
    type: DirectoryOrCreate
  {{- else }}
  persistentVolumeClaim:
    claimName: {{ .Values.tier3.claim }}
  {{- end }}
{{- end }}
{{- if .Values.remote.url }}
- name: remote
  secret:
    secretName: {{ .Values.remote.secret }}
    # Readable by the store's group, which is its user's alone, and by nobody else.
    defaultMode: 0440
# Removals that the engine has not confirmed. A folder of the node outlives the pod.
- name: remote-state
  {{- if eq .Values.mode "node" }}
  hostPath:
    path: {{ .Values.remote.nodePath }}
    type: DirectoryOrCreate
  {{- else }}
  emptyDir:
    sizeLimit: 64Mi
  {{- end }}
{{- end }}
{{- end -}}
