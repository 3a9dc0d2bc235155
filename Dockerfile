# Training in a container:
#   docker build --tag kmha .
#   docker run --rm --user "$(id -u)" --volume "$PWD:/data" kmha training.fit --data.train train.csv --out runs/news
# With a GPU, from an image with CUDA and Python 3.11 or later, and `docker run --gpus all`:
#   docker build --tag kmha-gpu --build-arg BASE=tensorflow/tensorflow:2.21.0-gpu .
ARG BASE=python:3.11-slim
FROM ${BASE}
ARG EXTRAS=report,tensorboard,onnx,litert

WORKDIR /kmha
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY kmha kmha
COPY training training
COPY export export
RUN python3 -m pip install --no-cache-dir --constraint constraints.txt ".[${EXTRAS}]"

# Caches of a user without a home folder.
ENV HOME=/tmp
WORKDIR /data
ENTRYPOINT ["python3", "-m"]
CMD ["training.fit", "--help"]
