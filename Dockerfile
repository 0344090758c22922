# docker build --target cpu  -t sglang-photon:cpu .     the locked CPU environment
# docker build --target cuda -t sglang-photon:cuda .    SGLang's own image, our wheel on top

FROM python:3.11-slim AS cpu
RUN apt-get update \
    && apt-get install -y --no-install-recommends make \
    && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/sglang-photon
COPY . .
RUN make setup
EXPOSE 30000
ENTRYPOINT [".venv/bin/photon", "serve", "--host", "0.0.0.0"]
CMD ["--model-path", "demo"]

FROM python:3.11-slim AS wheel
COPY . /src
RUN pip wheel --no-deps --wheel-dir /dist /src

FROM lmsysorg/sglang:v0.5.23 AS cuda
COPY --from=wheel /dist /dist
RUN python3 -m pip install --break-system-packages --no-deps /dist/*.whl
EXPOSE 30000
ENTRYPOINT ["photon", "serve", "--host", "0.0.0.0"]
CMD ["--model-path", "demo"]
