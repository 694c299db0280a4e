#!/usr/bin/env bash
# Brings the wasm32-wasip2 target to the Rust toolchain this repository uses.
#
# Every worker is compiled for that target, so `just setup` runs this first. When the target is
# there it says so and ends at once. Otherwise it asks rustup; where rustup cannot deliver, it
# builds the target's standard library from Debian's packages; where that cannot work either, it
# says in one paragraph what to do by hand.
set -euo pipefail
umask 022

readonly target=wasm32-wasip2

# The suites that may carry rust-src in rustc's own version, cheapest and likeliest first.
readonly suites=(trixie-backports trixie forky sid)

# Names by which an apt source is recognised as Debian's base distribution.
readonly debian_names=(
  stable testing unstable oldstable bookworm trixie forky duke sid bullseye
)

# rustup otherwise downloads whatever rust-toolchain.toml names as soon as `rustc` is called. The
# check must be quick and silent; installing is a step of its own here.
export RUSTUP_AUTO_INSTALL=0

# A backtrace of rustup or cargo would push the reason out of the last lines of its output.
export RUST_BACKTRACE=0

main() {
  cd "$(dirname "${BASH_SOURCE[0]}")/.."
  target_works && ready
  find_toolchain
  target_works && ready

  lock_toolchain
  target_works && ready "another run installed it"
  add_with_rustup && accept "installed by rustup"
  build_from_debian && accept "built from Debian's rust-src $rust_version$rustup_note"
  give_up
}

# Succeeds when the active toolchain turns a program into a component. Compiling one takes a tenth
# of a second and, unlike a look at the files, also notices a library left over from another rustc.
target_works() {
  rustc --target "$target" --crate-name probe -o "$tmp/probe.wasm" - \
    <<<'fn main() {}' >"$tmp/log" 2>&1
}

ready() {
  echo "setup: $target is ready${1:+ ($1)}"
  exit 0
}

# Ends the run if the target works, now that a step has ended well.
accept() {
  target_works && ready "$1"
  failed "compiling a program with the target $1"
}

# Sets `sysroot`, `rustlib` and `rust_version`, first installing the toolchain that
# rust-toolchain.toml names if rustup does not have it yet.
find_toolchain() {
  if ! rustc --version >"$tmp/log" 2>&1; then
    failed "rustc"
    if command -v rustup >/dev/null; then
      echo "setup: installing the Rust toolchain named in rust-toolchain.toml"
      limited 1200 rustup toolchain install || failed "rustup toolchain install"
    fi
    rustc --version >"$tmp/log" 2>&1 || give_up
  fi
  rust_version=$(cut -d' ' -f2 "$tmp/log")
  sysroot=$(rustc --print sysroot)
  rustlib=$sysroot/lib/rustlib
  # What failed before the toolchain was there no longer matters.
  attempts=()
}

# Lets one run at a time work on a toolchain; without flock, the final rename is safe all the same.
lock_toolchain() {
  command -v flock >/dev/null || return 0
  exec 9<"$rustlib"
  flock --nonblock 9 && return
  echo "setup: another run is bringing $target; waiting for it"
  flock --timeout 1800 9 || true
}

add_with_rustup() {
  if ! command -v rustup >/dev/null; then
    skipped "rustup" "not installed"
    return 1
  fi
  # rustup would install into its own toolchain, which need not be the one whose rustc comes first.
  if ! [[ $(rustup which rustc 2>/dev/null) -ef $sysroot/bin/rustc ]]; then
    skipped "rustup" "the rustc in use is not one of its toolchains"
    return 1
  fi
  rustup_note="; rustup does not know of it, so keep RUSTUP_AUTO_INSTALL=0 when building"
  echo "setup: asking rustup for $target"
  limited 240 rustup target add "$target" && return
  failed "rustup target add $target"
  return 1
}

# Builds the target's standard library from Debian's sources, of exactly rustc's version since rustc
# accepts no other, and the C library it links from wasi-libc.
build_from_debian() {
  local step="Debian's packages" tool
  for tool in apt-get apt-cache dpkg-deb; do
    if ! command -v "$tool" >/dev/null; then
      skipped "$step" "this machine has no $tool"
      return 1
    fi
  done
  if ! [[ -w $rustlib ]]; then
    skipped "$step" "$rustlib is not writable"
    return 1
  fi
  find_debian_mirror || return 1

  echo "setup: building $target from Debian's packages (takes a minute or more)"
  unpack_package rust-src "$rust_version" "usr/src/rustc-$rust_version/library" || return 1
  unpack_package wasi-libc any "usr/lib/$target" || return 1
  build_library || return 1
  install_library && return
  failed "installing into $rustlib"
  return 1
}

# Sets `source_file` and `source_suite` to the apt source that brings the base distribution.
# apt itself lists the sources, so that both file formats and disabled entries are its business.
find_debian_mirror() {
  local codename='' suite
  # shellcheck source=/dev/null
  codename=$(. /etc/os-release && [[ $ID == debian ]] && echo "${VERSION_CODENAME-}") || true
  # shellcheck disable=SC2016 # apt expands these, not the shell
  limited 60 apt-get indextargets --no-release-info --format '$(RELEASE) $(SOURCESENTRY)' \
    'Created-By: Packages' || { failed "listing apt's sources"; return 1; }
  for suite in $codename "${debian_names[@]}"; do
    source_file=$(sed -n "s|^$suite \(.*\):[0-9]*\$|\1|p;T;q" "$tmp/log")
    source_suite=$suite
    [[ $source_file ]] && return
  done
  skipped "Debian's packages" "no apt source of this machine is a Debian mirror"
  return 1
}

# Unpacks one folder of a package of an upstream version (or `any`) into `$tmp/root`. The rest of
# rust-src is tens of thousands of files that nothing here reads.
unpack_package() {
  local package=$1 wanted=$2 folder=$3 suite version
  mkdir -p "$tmp/root"
  for suite in "${suites[@]}"; do
    fetch_lists "$suite" || continue
    for version in $(versions_in "$suite" "$package"); do
      # The upstream version ends at `+` or `-`; what follows a `~` is a release before it.
      [[ $wanted == any || $version =~ ^([0-9]+:)?"$wanted"[+-] ]] || continue
      rm -rf "$tmp/deb"
      mkdir "$tmp/deb"
      limited 600 env --chdir "$tmp/deb" apt-get -qq --config-file "$tmp/apt/$suite/apt.conf" \
        download "$package=$version" || { failed "download of $package $version"; continue; }
      # shellcheck disable=SC2016 # the inner shell expands these
      limited 300 bash -c 'dpkg-deb --fsys-tarfile "$1" | tar -x -C "$2" "./$3"' unpack \
        "$tmp/deb/$package"_*.deb "$tmp/root" "$folder" && return
      failed "unpacking $folder of $package $version"
    done
  done
  [[ $wanted != any ]] || wanted="with $folder"
  skipped "Debian's packages" "no usable $package $wanted in ${suites[*]}"
  return 1
}

# Prints the versions of a package that a suite has.
versions_in() {
  apt-cache --config-file "$tmp/apt/$1/apt.conf" madison "$2" 2>/dev/null | cut -d'|' -f2
}

# Fetches one suite's package list, once, into folders of its own: the system's lists stay as they
# are, and no step needs root.
fetch_lists() {
  local suite=$1 dir=$tmp/apt/$1
  [[ -d $dir ]] && return
  mkdir -p "$dir"/{lists,cache/archives}/partial
  : >"$dir/status"
  derive_source "$suite" >"$dir/debian.sources"
  # The hooks are dropped because they would act on the system's own cache. Root's unprivileged
  # helper user `_apt` could not write here, hence the sandbox user. Without the error mode, apt
  # takes a mirror it cannot reach for a passing weakness and reports success.
  cat >"$dir/apt.conf" <<CONF
Dir::Etc::SourceList "$dir/debian.sources";
Dir::Etc::SourceParts "/dev/null";
Dir::State "$dir";
Dir::State::Lists "$dir/lists";
Dir::State::Status "$dir/status";
Dir::Cache "$dir/cache";
APT::Sandbox::User "root";
APT::Update::Error-Mode "any";
Acquire::Retries "1";
Acquire::http::Timeout "20";
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
CONF
  limited 300 apt-get -qq --config-file "$dir/apt.conf" update && return
  # A mirror that cannot be reached fails for every suite alike: once is enough to tell.
  [[ ${attempts[*]-} == *"lists of"* ]] || failed "lists of $suite"
  return 1
}

# Prints the machine's own Debian source with another suite in place of its own. Mirror, keyring and
# trust options (in `.list` files: what stands in brackets) are kept whatever they are.
derive_source() {
  awk -v base="$source_suite" -v suite="$1" '
    function emit(line) { text = text line "\n" }
    function finish() {
      if (usable && !disabled && !done) {
        printf "Types: deb\nSuites: %s\nComponents: main\nTargets: Packages\n%s", suite, text
        done = 1
      }
      text = ""; usable = disabled = kept = 0
    }
    function names_base(words,   i, n, word) {
      n = split(words, word, /[ \t]+/)
      for (i = 1; i <= n; i++) if (word[i] == base) return 1
      return 0
    }

    FILENAME ~ /\.list$/ {
      sub(/[ \t]*#.*/, "")
      if ($1 != "deb") next
      options = ""
      if (match($0, /\[[^]]*\]/)) {
        options = substr($0, RSTART + 1, RLENGTH - 2)
        $0 = substr($0, 1, RSTART - 1) " " substr($0, RSTART + RLENGTH)
      }
      usable = names_base($3)
      emit("URIs: " $2)
      n = split(options, option, /[ \t]+/)
      for (i = 1; i <= n; i++) {
        if (option[i] !~ /=/ || option[i] ~ /^(arch|lang|target)/) continue
        sub(/\+?=/, ": ", option[i])
        emit(option[i])
      }
      finish()
      next
    }

    /^#/ { next }
    /^[ \t]*$/ { finish(); next }
    /^[^ \t]/ {
      name = tolower(substr($0, 1, index($0, ":") - 1))
      kept = name !~ /^(types|suites|components|targets|languages|architectures|enabled)$/
      if (name == "enabled" && tolower($2) ~ /^(no|false|off|0|without|disable)$/) disabled = 1
    }
    name == "suites" && names_base($0) { usable = 1 }
    kept { emit($0) }
    END { finish() }
  ' "$source_file"
}

# Builds the standard library in `$tmp/library`, outside the unpacked tree: a cargo configuration
# there would point to a vendored set that lacks the crates the lock file asks for.
build_library() {
  mv "$tmp/root/usr/src/rustc-$rust_version/library" "$tmp/library"
  # Called by path: outside the repository, rustup's `cargo` would choose another toolchain.
  local cargo=$sysroot/bin/cargo rustc=$sysroot/bin/rustc
  [[ -x $cargo ]] || cargo=$(command -v cargo)
  [[ -x $rustc ]] || rustc=$(command -v rustc)
  # The caller's settings for its own builds must not shape this one.
  unset CARGO_ENCODED_RUSTFLAGS "${!CARGO_PROFILE_@}"
  limited 1800 env --chdir "$tmp/library" CARGO_TARGET_DIR="$tmp/target" RUSTC="$rustc" \
    RUSTC_WRAPPER= RUSTC_WORKSPACE_WRAPPER= RUSTC_BOOTSTRAP=1 \
    RUSTFLAGS="-Cpanic=abort -Cembed-bitcode=yes -Zforce-unstable-if-unmarked" \
    "$cargo" build --release --locked -p sysroot --target "$target" \
    --features compiler-builtins-mem && return
  failed "build of the standard library"
  return 1
}

# Puts the built target in place by a rename, so that an interrupted run leaves all of it or none.
install_library() {
  local new
  # Left by runs that were killed; the lock says that nobody is using them.
  rm -rf "$rustlib/.$target".*
  stage=$(mktemp -d "$rustlib/.$target.XXXXXX")
  new=$stage/new/lib
  mkdir -p "$new/self-contained"
  {
    cp "$tmp/target/$target/release/deps"/*.rlib "$new/" &&
      cp "$tmp/root/usr/lib/$target"/{crt1-command.o,crt1-reactor.o,libc.a} \
        "$new/self-contained/" &&
      sync -f "$new" &&
      if [[ -e $rustlib/$target ]]; then mv -T "$rustlib/$target" "$stage/old"; fi &&
      mv -T "$stage/new" "$rustlib/$target"
  } >"$tmp/log" 2>&1
}

# Runs a command for at most so many seconds, without input, its output in `$tmp/log`. It runs in
# the background so that a signal ends the script, and with it the command, at once.
limited() {
  local seconds=$1
  shift
  local command=("$@")
  if command -v timeout >/dev/null; then command=(timeout "$seconds" "$@"); fi
  "${command[@]}" </dev/null >"$tmp/log" 2>&1 9<&- &
  wait "$!" && return
  local status=$?
  if ((status == 124)); then echo "gave up after $seconds seconds" >>"$tmp/log"; fi
  return "$status"
}

# Remembers a failed step with the first error and the last lines of its log, without the names of
# servers.
failed() {
  local host='([a-z0-9-]+\.)+(org|com|net|io|dev|cloud|internal|local|lan)'
  local lines
  lines=$({ grep -m 1 -E '^(error|E:)' "$tmp/log"; tail -n 3 "$tmp/log"; } |
    awk 'NF && !seen[$0]++' |
    sed -E -e "s#://[^]/ \`'\")]*#://(host)#g" -e "s#\b$host\b#(host)#gI" \
      -e "s#([0-9]{1,3}\.){3}[0-9]+#(address)#g" |
    tr '\n\t' '  ' | tr -s ' ') || true
  lines=${lines% }
  attempts+=("$1 failed: ${lines:-without a message}")
}

skipped() {
  attempts+=("$1: $2")
}

give_up() {
  local tried
  tried=$(printf '%s; ' "${attempts[@]}")
  if [[ -z ${rustlib-} ]]; then
    echo "setup: there is no working Rust toolchain. Tried: ${tried%; }." \
      "To do by hand: install the toolchain that rust-toolchain.toml names (with rustup:" \
      "\`rustup toolchain install\` in this folder), then run \`just setup\` again."
  else
    echo "setup: rustc $rust_version in $sysroot has no usable standard library for $target," \
      "which every worker is compiled for, and it could not be installed. Tried: ${tried%; }." \
      "To do by hand: run \`rustup target add $target\` in this folder where rustup's server can" \
      "be reached, or copy lib/rustlib/$target from another machine's rustc $rust_version to" \
      "$rustlib/$target, then run \`just setup\` again."
  fi >&2
  exit 1
}

# shellcheck disable=SC2329 # the trap calls it
clean_up() {
  local job
  # `timeout` passes the signal on to everything its command has started.
  for job in $(jobs -p); do
    kill "$job" 2>/dev/null || true
    wait "$job" 2>/dev/null || true
  done
  rm -rf "$tmp" ${stage:+"$stage"}
}

attempts=()
rustup_note=''
tmp=$(mktemp -d)
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
main
