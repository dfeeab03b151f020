# One image for every role; the command says which. Two stages, so that the final one has no compiler, no pip cache.
FROM python:3.11-slim-bookworm AS build
WORKDIR /src
RUN python -m venv /opt/lockstep
COPY constraints.txt ./
COPY pyproject.toml README.md ./
COPY schemas ./schemas
COPY streams ./streams
COPY connectors ./connectors
COPY analytics ./analytics
COPY infra ./infra
RUN /opt/lockstep/bin/pip install --no-cache-dir --disable-pip-version-check -c constraints.txt .

FROM python:3.11-slim-bookworm
COPY --from=build /opt/lockstep /opt/lockstep
# The user id is fixed so that a volume keeps its owner when the image is built again.
RUN useradd --uid 10001 --create-home lockstep && mkdir -p /var/lib/lockstep && chown lockstep /var/lib/lockstep
USER lockstep
ENV PATH=/opt/lockstep/bin:$PATH PYTHONUNBUFFERED=1 LOCKSTEP_DATA_DIR=/var/lib/lockstep
VOLUME /var/lib/lockstep
EXPOSE 9464
ENTRYPOINT ["lockstep"]
CMD ["--help"]
