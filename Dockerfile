# docker build --target serve -t freshet .          serving, without TensorFlow
# docker build --target train -t freshet-train .    training and compiling, streams, several processes
# Where no Docker engine is at hand, `.ci/image-steps` runs the same steps in a clean folder.

FROM python:3.11-slim AS build
WORKDIR /src
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY freshet_serving freshet_serving
COPY processor processor
COPY compiler compiler
COPY models models
COPY serving serving
RUN python -m venv /opt/freshet && /opt/freshet/bin/pip install --no-cache-dir -c constraints.txt '.[openvino,xla,objects,signed,redis]'
# Kernels are compiled for the CPU that builds the image; on another kind they are compiled once more, at the first start.
ENV NUMBA_CACHE_DIR=/opt/freshet/kernels
RUN /opt/freshet/bin/python -m freshet_serving.processor.kernels

FROM build AS build-train
RUN /opt/freshet/bin/pip install --no-cache-dir -c constraints.txt '.[train,client,openvino,xla,mpi,redis,kafka,objects,signed]'

FROM python:3.11-slim AS runtime
RUN useradd --create-home --uid 10001 freshet && mkdir /repository /mirror /home/freshet/run \
    && chown freshet /repository /mirror /home/freshet/run
ENV PATH=/opt/freshet/bin:$PATH NUMBA_CACHE_DIR=/opt/freshet/kernels \
    FRESHET_REPOSITORY=/repository FRESHET_MIRROR=/mirror FRESHET_HOST=0.0.0.0
WORKDIR /home/freshet

FROM runtime AS train
COPY --from=build-train --chown=freshet /opt/freshet /opt/freshet
USER freshet
ENTRYPOINT ["freshet"]
CMD ["train", "--help"]

FROM runtime AS serve
COPY --from=build --chown=freshet /opt/freshet /opt/freshet
USER freshet
EXPOSE 8500 8501
VOLUME /repository /mirror
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s CMD \
    ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8501/v2/health/ready', timeout=2)"]
ENTRYPOINT ["freshet"]
CMD ["serve"]
