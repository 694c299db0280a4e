#!/usr/bin/env bash
# Brings what others wrote and the tests run against the host: clients of MCP and its
# conformance suite, by npm, and schemathesis, by pip. `install.sh FOLDER` puts them there,
# in the versions that stand beside this file, and does nothing where they are there already.
#
# What cannot be brought is said loudly, and the tests that need it say so as well. With
# BACKLOT_CLIENTS=required, as in CI, it is a failure.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
folder=$(cd "$1" && pwd)

main() {
  exec 9>"$folder/.lock"
  # A run that waits for another finds everything there afterwards.
  ! command -v flock >/dev/null || flock 9
  bring node_modules package-lock.json "clients of MCP" node_packages
  bring python requirements.txt "schemathesis" python_packages
}

# Brings one of them: the folder it is in, the file that has its versions, what it is for.
bring() {
  local name=$1 versions=$here/$2 what=$3 how=$4
  if [[ -d $folder/$name ]] && cmp -s "$versions" "$folder/.$name"; then return; fi
  rm -f "$folder/.$name"
  if ! "$how" >"$folder/$name.log" 2>&1; then
    echo "clients: SKIPPED: no $what, so the tests that need them skip: $(reason "$name")" >&2
    [[ ${BACKLOT_CLIENTS-} != required ]] || exit 1
    return 0
  fi
  cp "$versions" "$folder/.$name"
}

node_packages() {
  command -v npm || { echo "there is no npm on this machine"; return 1; }
  cp "$here"/package{,-lock}.json "$folder/"
  # Not `npm ci`, which stops at a package that is optional and cannot be had. What the lock
  # file has is what is installed, and nothing of it runs when it is.
  npm --prefix "$folder" install --ignore-scripts --no-audit --no-fund --prefer-offline
}

python_packages() {
  command -v python3 || { echo "there is no Python on this machine"; return 1; }
  rm -rf "$folder/python"
  python3 -m venv "$folder/python"
  "$folder/python/bin/pip" install --quiet --disable-pip-version-check \
    --only-binary :all: --requirement "$here/requirements.txt"
}

# Prints the last line of a log, without the names of servers.
reason() {
  tail -n 1 "$folder/$1.log" | sed -E 's#://[^]/ ]*#://(host)#g'
}

main
