// Render a Helm chart as `helm template` does, with the same template engine and function library (Go's text/template and
// sprig). It has the functions of Helm that the chart uses: include, toYaml and required. Usage:
//
//	go run main.go CHART RELEASE NAMESPACE VALUES...
package main

import (
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strings"
	"text/template"

	"github.com/Masterminds/sprig"
	"gopkg.in/yaml.v3"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func read(path string) map[string]interface{} {
	text, err := os.ReadFile(path)
	check(err)
	found := map[string]interface{}{}
	check(yaml.Unmarshal(text, &found))
	return found
}

// merge replaces values in `into` as Helm does: maps key by key, everything else as a whole.
func merge(into, from map[string]interface{}) {
	for key, value := range from {
		old, isMap := into[key].(map[string]interface{})
		given, isToo := value.(map[string]interface{})
		if isMap && isToo {
			merge(old, given)
		} else {
			into[key] = value
		}
	}
}

func main() {
	chart, release, namespace := os.Args[1], os.Args[2], os.Args[3]
	values := read(filepath.Join(chart, "values.yaml"))
	for _, path := range os.Args[4:] {
		merge(values, read(path))
	}
	about := read(filepath.Join(chart, "Chart.yaml"))
	data := map[string]interface{}{
		"Values":  values,
		"Release": map[string]interface{}{"Name": release, "Namespace": namespace, "Service": "Helm"},
		"Chart": map[string]interface{}{
			"Name": about["name"], "Version": about["version"], "AppVersion": about["appVersion"],
		},
	}
	all := template.New("chart").Option("missingkey=zero")
	functions := sprig.TxtFuncMap()
	functions["include"] = func(name string, data interface{}) (string, error) {
		var out strings.Builder
		err := all.ExecuteTemplate(&out, name, data)
		return out.String(), err
	}
	functions["toYaml"] = func(value interface{}) (string, error) {
		text, err := yaml.Marshal(value)
		return strings.TrimSuffix(string(text), "\n"), err
	}
	functions["required"] = func(message string, value interface{}) (interface{}, error) {
		if value == nil || value == "" {
			return value, fmt.Errorf(message)
		}
		return value, nil
	}
	all.Funcs(functions)
	paths, err := filepath.Glob(filepath.Join(chart, "templates", "*"))
	check(err)
	sort.Strings(paths)
	for _, path := range paths {
		text, err := os.ReadFile(path)
		check(err)
		_, err = all.New(filepath.Base(path)).Parse(string(text))
		check(err)
	}
	for _, path := range paths {
		name := filepath.Base(path)
		if strings.HasPrefix(name, "_") {
			continue
		}
		var out strings.Builder
		check(all.ExecuteTemplate(&out, name, data))
		text := strings.TrimSpace(out.String())
		if name == "NOTES.txt" {
			fmt.Fprintln(os.Stderr, text)
		} else if text != "" {
			fmt.Printf("---\n%s\n", text)
		}
	}
}
