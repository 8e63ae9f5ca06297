# The plugin for any vLLM image, as an init container: copies halffull-larry into a volume. From the repository's root:
#   docker build -f images/larry.Dockerfile --build-arg VERSION=$(cat VERSION) -t halffull-larry:$(cat VERSION) .
# Use: an emptyDir at /plugin in this container and in vLLM's, where PYTHONPATH=/plugin (docs/larry.md).
ARG PYTHON=docker.io/library/python:3.11-slim

FROM ${PYTHON} AS build
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
WORKDIR /src
# One static program is all that the image needs to copy files.
RUN apt-get update \
 && apt-get install -y --no-install-recommends busybox-static \
 && rm -rf /var/lib/apt/lists/*
RUN mkdir -p /image/bin /image/tmp /image/plugin /image/licenses/halffull /image/licenses/busybox \
 && chmod 1777 /image/tmp /image/plugin \
 && cp /bin/busybox /image/bin/ \
 && for name in sh basename cat cp dirname id ls mktemp mv rm; do ln -s busybox /image/bin/$name; done \
 && /bin/busybox 2>&1 | sed -n '1,3p' > /image/licenses/busybox/NOTICE
COPY requirements/build.txt requirements/
RUN python3 -m venv /opt/build && /opt/build/bin/pip install --require-hashes --no-deps -r requirements/build.txt
COPY LICENSE VERSION ./
COPY larry larry
RUN /opt/build/bin/pip wheel --no-deps --no-index --no-build-isolation --wheel-dir /dist ./larry \
 && /opt/build/bin/python -m zipfile -e /dist/*.whl /image/halffull/wheel \
 && cp LICENSE /image/licenses/halffull/
COPY --chmod=755 images/larry-install /image/halffull/install

FROM scratch
ARG VERSION=unknown
LABEL org.opencontainers.image.title="halffull-larry" \
      org.opencontainers.image.description="LARRY for any vLLM image: an init container that copies the scheduler plugin into a volume" \
      org.opencontainers.image.licenses="Apache-2.0 AND GPL-2.0-only" \
      org.opencontainers.image.version="${VERSION}"
COPY --from=build /image /
# Only the volume is written: any user will do, and a read-only root file system.
ENV PATH=/bin
USER 65532:65532
WORKDIR /
ENTRYPOINT ["/halffull/install"]
CMD ["/plugin"]
