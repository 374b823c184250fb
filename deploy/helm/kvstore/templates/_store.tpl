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
{{- range $name, $value := .Values.store.settings }}
{{ $name }} = {{ $value | toJson }}
{{- end }}
{{- end -}}

{{/* What of the store is memory of the host. */}}
{{- define "kvstore.storeMiB" -}}
{{- $tier1 := eq .Values.store.device "cpu" | ternary .Values.store.tier1MiB 0 -}}
{{- add $tier1 .Values.store.tier2MiB .Values.store.roomMiB -}}
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
  # Pages of the host are charged to the store, which touches them first.
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
{{- end -}}

{{- define "kvstore.storeVolumes" -}}
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
{{- end -}}
