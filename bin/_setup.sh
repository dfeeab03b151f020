# Shared by bin/demo, bin/test and the others: makes .venv with pinned dependencies, and gets what the machine lacks.
# Sourced with `need_python`, `need_java`, `make_venv EXTRAS` called by name. Safe to run again; quick when all is there.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
say() { printf '%s\n' "$*" >&2; }
die() { say "$*"; exit 1; }

# install PACKAGE…: through apt-get where this user may, else prints the one line to run and stops.
install() {
  local sudo=""
  [ "$(id -u)" = 0 ] || sudo="sudo"
  if ! command -v apt-get >/dev/null; then
    die "Please install: $* (this machine has no apt-get; the names are Debian's)."
  fi
  if [ -n "$sudo" ] && ! { command -v sudo >/dev/null && sudo -n true 2>/dev/null; }; then
    die "Please run once:  sudo apt-get update && sudo apt-get install -y --no-install-recommends $*"
  fi
  say "Installing $* …"
  $sudo apt-get update -qq
  $sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

# A Python from 3.11 on that can make a virtual environment; sets $python.
find_python() {
  local candidate
  for candidate in python3.13 python3.12 python3.11 python3; do
    if command -v "$candidate" >/dev/null &&
      "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      python=$candidate
      return 0
    fi
  done
  return 1
}
need_python() {
  find_python && return
  install python3 python3-venv ca-certificates
  find_python || die "Lockstep needs Python 3.11 or newer with venv; this distribution's python3 is older. Install one (for example python3.12 and python3.12-venv) and run this again."
}

java_major() { java -version 2>&1 | sed -nE 's/.*version "([0-9]+).*/\1/p' | head -n 1; }
need_java() {
  local wanted=()
  { command -v java >/dev/null && [ "$(java_major)" -ge 17 ] 2>/dev/null; } || wanted+=(default-jdk-headless)
  command -v mvn >/dev/null || wanted+=(maven)
  [ ${#wanted[@]} -eq 0 ] || install "${wanted[@]}"
  [ "$(java_major)" -ge 17 ] || die "The tests run a real Kafka broker, which needs Java 17 or newer; found $(java_major)."
}

# make_venv EXTRAS: .venv with exactly constraints.txt, made again only when it or pyproject.toml changed.
make_venv() {
  local extras=$1 stamp want
  stamp=.venv/.installed${extras:+-$extras}
  want=$(cat pyproject.toml constraints.txt | sha256sum)
  if [ -x .venv/bin/python ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then
    return
  fi
  [ -x .venv/bin/python ] || { say "Making .venv …"; "$python" -m venv .venv; }
  say "Installing pinned Python packages …"
  .venv/bin/python -m pip install --quiet --use-pep517 --disable-pip-version-check -c constraints.txt -e ".${extras:+[$extras]}"
  printf '%s\n' "$want" > "$stamp"
}
