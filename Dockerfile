# Workers, projector, set-up and the demo's desk: one image, one command each (docker-compose.yml).
FROM python:3.13-slim

ENV PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1

RUN useradd --create-home --uid 10001 handoff

WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY infra/constraints.txt infra/constraints.txt
# The dependencies alone first: a change of our code does not install them again.
RUN python -c "import tomllib; print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['dependencies'], sep='\n')" > /tmp/dependencies.txt \
    && pip install -c infra/constraints.txt -r /tmp/dependencies.txt

COPY schemas schemas
COPY streams streams
COPY agents agents
COPY infra infra
RUN pip install --no-deps . && rm -rf /src/build

# Not /src: what runs is what was installed.
WORKDIR /home/handoff
USER handoff
CMD ["handoff", "--help"]
