// render_chart CHART RELEASE [VALUES.yaml...] prints what `helm template` would: Go's own templates, Sprig's functions and
// the few that Helm adds. For machines without Helm; on Debian: golang-go golang-github-masterminds-sprig-dev
// golang-k8s-sigs-yaml-dev, GO111MODULE=off GOPATH=/usr/share/gocode.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"sigs.k8s.io/yaml"
)

type files struct{ root string }

func (f files) Get(name string) string {
	content, err := os.ReadFile(filepath.Join(f.root, name))
	if err != nil {
		return "" // as Helm does
	}
	return string(content)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, "render_chart:", err)
		os.Exit(1)
	}
}

func read(path string) map[string]interface{} {
	content, err := os.ReadFile(path)
	check(err)
	values := map[string]interface{}{}
	check(yaml.UnmarshalStrict(content, &values))
	return values
}

func merge(into, from map[string]interface{}) {
	for name, value := range from {
		below, isMap := value.(map[string]interface{})
		there, wasMap := into[name].(map[string]interface{})
		if isMap && wasMap {
			merge(there, below)
		} else if value == nil {
			delete(into, name)
		} else {
			into[name] = value
		}
	}
}

func main() {
	chart, release := os.Args[1], os.Args[2]
	values := read(filepath.Join(chart, "values.yaml"))
	for _, path := range os.Args[3:] {
		merge(values, read(path))
	}
	about := read(filepath.Join(chart, "Chart.yaml"))
	titled := map[string]interface{}{}
	for name, value := range about {
		titled[strings.ToUpper(name[:1])+name[1:]] = value
	}
	root := template.New("chart").Option("missingkey=error")
	functions := sprig.TxtFuncMap()
	delete(functions, "env")
	delete(functions, "expandenv")
	functions["toYaml"] = func(value interface{}) string {
		text, err := yaml.Marshal(value)
		check(err)
		return strings.TrimSuffix(string(text), "\n")
	}
	functions["include"] = func(name string, data interface{}) (string, error) {
		var out bytes.Buffer
		err := root.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	functions["required"] = func(message string, value interface{}) (interface{}, error) {
		if text, isText := value.(string); value == nil || isText && text == "" {
			return nil, errors.New(message)
		}
		return value, nil
	}
	root.Funcs(functions)
	found, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	check(err)
	for _, path := range found {
		content, err := os.ReadFile(path)
		check(err)
		template.Must(root.New(filepath.Base(path)).Parse(string(content)))
	}
	data := map[string]interface{}{
		"Values": values, "Chart": titled, "Files": files{chart},
		"Release": map[string]interface{}{"Name": release, "Namespace": "default", "Service": "Helm"},
	}
	for _, path := range found {
		if !strings.HasSuffix(path, ".yaml") {
			continue
		}
		var out bytes.Buffer
		check(root.ExecuteTemplate(&out, filepath.Base(path), data))
		if text := strings.TrimSpace(out.String()); text != "" {
			fmt.Printf("---\n# Source: %s\n%s\n", filepath.Base(path), strings.TrimPrefix(text, "---\n"))
		}
	}
}
