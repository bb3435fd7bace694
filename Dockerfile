# Image of the exporter: Debian, Python and the wheel, without build tools, not root.
#
#   docker build -t gpuledger .
#
# BASE is any Debian 12 or newer; pin it by digest (debian@sha256:...) for reproducible images. It is a tag here because a
# digest in this file would keep Debian's security updates out; release.yml resolves the digest once, builds all platforms
# on it and records it in the provenance of the image. COMMIT is shown by `gpuledger --version`.
# WHEELS=--no-index installs dependencies only from deploy/wheels/, for builds without a package index. See
# docs/docker.md.
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
ARG WHEELS=""
ARG COMMIT=""
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null
WORKDIR /src
COPY pyproject.toml hatch_build.py README.md LICENSE NOTICE ./
COPY src src
COPY deploy/man deploy/man
COPY deploy/completion deploy/completion
COPY deploy/requirements.txt deploy/build-requirements.txt deploy/wheels* wheels/
# Build the wheel as a release does. Only the wheel and its dependencies are copied to the final image.
RUN python3 -m venv /opt/tools \
 && /opt/tools/bin/pip install -q --no-cache-dir ${WHEELS} --find-links wheels --require-hashes \
      -r wheels/build-requirements.txt \
 && SOURCE_COMMIT="${COMMIT}" /opt/tools/bin/pip wheel -q --no-cache-dir --no-deps --no-index --no-build-isolation \
      -w /dist . \
 && python3 -m venv --without-pip /opt/gpuledger \
 && /opt/tools/bin/pip --python /opt/gpuledger/bin/python install -q --no-cache-dir --no-compile ${WHEELS} \
      --find-links wheels --require-hashes -r wheels/requirements.txt \
 && /opt/tools/bin/pip --python /opt/gpuledger/bin/python install -q --no-cache-dir --no-compile --no-deps /dist/*.whl \
 && /opt/gpuledger/bin/python -m compileall -q --invalidation-mode unchecked-hash /opt/gpuledger/lib

FROM ${BASE}
RUN apt-get update -qq \
 && apt-get install -y -qq --no-install-recommends ca-certificates python3 >/dev/null \
 && apt-get clean && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/* /usr/share/man/* \
 && find /usr/share/doc -type f ! -name copyright -delete
COPY --from=build /opt/gpuledger /opt/gpuledger
ENV PATH=/opt/gpuledger/bin:/usr/bin:/bin \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=utility
ARG COMMIT=""
ARG VERSION=""
LABEL org.opencontainers.image.title="gpuledger" \
      org.opencontainers.image.description="Prometheus exporter that attributes NVIDIA GPU use to processes, containers and pods." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${COMMIT}"
# User nobody. The sockets of the kubelet and of containerd need root: see docs/permissions.md.
USER 65534:65534
EXPOSE 9400
# If the command sets another port, TLS or a login, pass --health-cmd or --no-healthcheck.
HEALTHCHECK --interval=30s --timeout=5s --start-period=10s --retries=3 CMD ["python3", "-c", "\
from os import environ as e; from urllib.request import urlopen; \
port = (e.get('GPULEDGER_WEB_LISTEN_ADDRESS') or e.get('EXPORTER_PORT') or '9400').split(':')[-1]; \
urlopen(f'http://localhost:{port}/healthz', timeout=4)"]
ENTRYPOINT ["gpuledger"]
CMD ["serve"]
