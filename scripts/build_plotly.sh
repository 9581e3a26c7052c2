#!/bin/sh
# Build reports/assets/plotly.min.js: plotly.js with only the traces that reports.figures draw.
#
#   scripts/build_plotly.sh           build, compare with the sum below, write the file
#   scripts/build_plotly.sh --check   compare the committed file with the sum below
#
# Needs node 20 or newer and npm. Another version or another trace: edit the lines below, run it, and
# write the new sum here. The packages are those of the registry at the date.
set -eu

version=4.1.1
traces="scatter bar box heatmap parcoords"
date=2026-11-26
sum=d64156bff03dfa38021842fdf99f1838625a10d0853df1658f1aa9c2fa1809fa

root=$(cd "$(dirname "$0")/.." && pwd)
file=$root/reports/assets/plotly.min.js
if [ "${1:-}" = --check ]; then
    echo "$sum  $file" | sha256sum --check --quiet
    exit
fi

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
echo '{"private": true}' > package.json
npm install --silent --ignore-scripts --no-audit --no-fund --before="$date" \
    plotly.js@$version esbuild@0.28.1 esbuild-plugin-glsl@1.4.2 stream-browserify@3.0.0
{
    echo "const Plotly = require('plotly.js/lib/core');"
    for trace in $traces; do
        [ "$trace" = scatter ] || echo "Plotly.register(require('plotly.js/lib/$trace'));"
    done
    echo "module.exports = Plotly;"
} > entry.js
# As plotly.js's own esbuild-config.js, less the style of maps and the attributes' descriptions.
cat > build.js <<'END'
const { readFile } = require('fs/promises');
const [version, traces] = process.argv.slice(2);
const undescribe = {
    name: 'undescribe',
    setup: (build) => build.onLoad({ filter: /plotly\.js\/src\/.*\.js$/ }, async ({ path }) => ({
        contents: (await readFile(path, 'utf8'))
            .replace(/^\s*description: \[[^[\]]*\]\.join\([^()]*\),?$/gm, '')
            .replace(/^\s*description: (['"]).*\1,?$/gm, ''),
    })),
};
require('esbuild').build({
    entryPoints: ['entry.js'],
    outfile: 'plotly.min.js',
    format: 'iife',
    globalName: 'Plotly',
    bundle: true,
    minify: true,
    charset: 'ascii',
    legalComments: 'none',
    loader: { '.css': 'empty' },
    plugins: [undescribe, require('esbuild-plugin-glsl').glsl({ minify: true })],
    alias: { regl: '@plotly/regl', stream: 'stream-browserify' },
    define: { global: 'window', 'define.amd': 'false', 'process.env.NODE_DEBUG': 'false' },
    target: 'es2016',
    banner: { js: `/**
* plotly.js (${traces}) v${version}
* Copyright 2012-2026, Plotly, Inc.
* All rights reserved.
* Licensed under the MIT license
*/` },
}).catch(() => process.exit(1));
END
node build.js "$version" "$traces"
sha256sum plotly.min.js
wc -c plotly.min.js
echo "$sum  plotly.min.js" | sha256sum --check --quiet
cp plotly.min.js "$file"
