# docker build --target serve -t freshet .            serving with ONNX Runtime, without TensorFlow
# docker build --target serve-all -t freshet-all .    the same with OpenVINO and XLA
# docker build --target train -t freshet-train .      training and compiling, streams, several processes

# Building the wheel compiles the kernels.
FROM python:3.11-slim AS wheel
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY generators/build_backend.py generators/
COPY freshet_serving freshet_serving
COPY processor processor
COPY compiler compiler
COPY models models
COPY serving serving
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels .

# An environment without pip, which nothing runs again, and without the tests of libraries.
FROM python:3.11-slim AS build
COPY --from=wheel /wheels /wheels
COPY constraints.txt /
RUN python -m venv --without-pip /opt/freshet \
    && python -m pip --python /opt/freshet/bin/python install --no-cache-dir -c constraints.txt \
        "$(ls /wheels/*.whl)[objects,signed,redis]" \
    && find /opt/freshet -path '*/site-packages/*' -name tests -prune -exec rm -rf {} +

FROM build AS build-all
RUN python -m pip --python /opt/freshet/bin/python install --no-cache-dir -c constraints.txt \
    "$(ls /wheels/*.whl)[openvino,xla]"

FROM build AS build-train
RUN python -m pip --python /opt/freshet/bin/python install --no-cache-dir -c constraints.txt \
    "$(ls /wheels/*.whl)[train,client,openvino,xla,mpi,kafka]"

# What is installed belongs to root, so that whoever runs the image may read its kernels.
FROM python:3.11-slim AS runtime
RUN useradd --create-home --uid 10001 freshet && mkdir /repository /mirror /home/freshet/run \
    && chown freshet /repository /mirror /home/freshet/run
ENV PATH=/opt/freshet/bin:$PATH \
    FRESHET_REPOSITORY=/repository FRESHET_MIRROR=/mirror FRESHET_HOST=0.0.0.0
WORKDIR /home/freshet
USER freshet
ENTRYPOINT ["freshet"]

FROM runtime AS train
COPY --from=build-train /opt/freshet /opt/freshet
CMD ["train", "--help"]

FROM runtime AS serving
EXPOSE 8500 8501
VOLUME /repository /mirror
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s CMD \
    ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8501/v2/health/ready', timeout=2)"]
CMD ["serve"]

FROM serving AS serve-all
COPY --from=build-all /opt/freshet /opt/freshet

FROM serving AS serve
COPY --from=build /opt/freshet /opt/freshet
