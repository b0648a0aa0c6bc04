#!/bin/sh
# Install the browser with which a test looks at the dashboard. Where that cannot be done the test is skipped aloud.
set -u
complete() { for program in chromium chromium-browser google-chrome; do command -v "$program" >/dev/null && return 0; done; return 1; }

complete && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null || [ -d /run/systemd/system ]; then
    echo "the test of the dashboard's page needs chromium; it is skipped without it" >&2
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
install() { apt-get install -qq -y --no-install-recommends chromium; }
{ install || { apt-get update -qq && install; }; } >/dev/null 2>&1
complete || echo "chromium could not be installed; the test of the dashboard's page is skipped" >&2
exit 0
