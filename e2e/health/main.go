// Command health says of an object what GitOps tools make of it. It reads one JSON document, {"object": …, "lua": …},
// and prints one: what kstatus says, the library that Flux and kpt use, and, if there is a script, what it returns the
// way Argo CD runs it, with the object as the global `obj`.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	lua "github.com/yuin/gopher-lua"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/cli-utils/pkg/kstatus/status"
)

type question struct {
	Object unstructured.Unstructured `json:"object"`
	Lua    string                    `json:"lua"`
}

type verdict struct {
	Status  string `json:"status"`
	Message string `json:"message"`
}

type answer struct {
	Kstatus verdict  `json:"kstatus"`
	Argo    *verdict `json:"argo,omitempty"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "health:", err)
		os.Exit(1)
	}
}

func run() error {
	var asked question
	if err := json.NewDecoder(os.Stdin).Decode(&asked); err != nil {
		return err
	}
	computed, err := status.Compute(&asked.Object)
	if err != nil {
		return err
	}
	said := answer{Kstatus: verdict{computed.Status.String(), computed.Message}}
	if asked.Lua != "" {
		if said.Argo, err = argo(asked.Lua, asked.Object.Object); err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(said)
}

func argo(script string, object map[string]any) (*verdict, error) {
	if metadata, ok := object["metadata"].(map[string]any); ok && metadata["deletionTimestamp"] != nil {
		// Of what is being deleted Argo CD asks no script.
		return &verdict{"Progressing", "Pending deletion"}, nil
	}
	// Without any library but these, as Argo CD has it by default.
	state := lua.NewState(lua.Options{SkipOpenLibs: true})
	defer state.Close()
	for _, open := range []lua.LGFunction{lua.OpenBase, lua.OpenTable} {
		state.Push(state.NewFunction(open))
		state.Call(0, 0)
	}
	state.SetGlobal("obj", value(state, object))
	if err := state.DoString(script); err != nil {
		return nil, err
	}
	returned, ok := state.Get(-1).(*lua.LTable)
	if !ok {
		return nil, fmt.Errorf("the script returns no table but %s", state.Get(-1))
	}
	field := func(name string) string { return lua.LVAsString(returned.RawGetString(name)) }
	return &verdict{field("status"), field("message")}, nil
}

func value(state *lua.LState, of any) lua.LValue {
	switch of := of.(type) {
	case map[string]any:
		table := state.NewTable()
		for key, field := range of {
			table.RawSetString(key, value(state, field))
		}
		return table
	case []any:
		table := state.NewTable()
		for _, item := range of {
			table.Append(value(state, item))
		}
		return table
	case string:
		return lua.LString(of)
	case bool:
		return lua.LBool(of)
	case int64:
		return lua.LNumber(of)
	case float64:
		return lua.LNumber(of)
	default:
		return lua.LNil
	}
}
