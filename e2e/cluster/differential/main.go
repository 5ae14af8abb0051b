// Command differential answers questions about quantities, label selectors and references to variables with
// Kubernetes' own code: one question in JSON on each line of its input, one answer on each line of its output.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
)

// question holds one of quantity, compare, selector with labels, or env.
type question struct {
	Quantity *string               `json:"quantity"`
	Compare  []string              `json:"compare"`
	Selector *metav1.LabelSelector `json:"selector"`
	Labels   map[string]string     `json:"labels"`
	Env      *env                  `json:"env"`
}

// env is a container's, once all that it refers to was read.
type env struct {
	// Imported is what envFrom brings.
	Imported []variable `json:"imported"`
	Defined  []variable `json:"defined"`
	Words    []string   `json:"words"`
}

// variable has a value of its own, or one that was taken from somewhere and is not expanded.
type variable struct {
	Name  string  `json:"name"`
	Value string  `json:"value"`
	Taken *string `json:"taken"`
}

type answer struct {
	Error     string            `json:"error,omitempty"`
	Canonical string            `json:"canonical,omitempty"`
	Sign      int               `json:"sign"`
	Value     int64             `json:"value"`
	Millis    int64             `json:"millis"`
	Order     int               `json:"order"`
	Matches   bool              `json:"matches"`
	Variables map[string]string `json:"variables,omitempty"`
	Words     []string          `json:"words,omitempty"`
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "differential:", err)
		os.Exit(1)
	}
}

func run() error {
	questions := bufio.NewScanner(os.Stdin)
	questions.Buffer(nil, 16<<20)
	output := bufio.NewWriter(os.Stdout)
	answers := json.NewEncoder(output)
	for questions.Scan() {
		var asked question
		if err := json.Unmarshal(questions.Bytes(), &asked); err != nil {
			return fmt.Errorf("reading %s: %w", questions.Bytes(), err)
		}
		answered, err := asked.answer()
		if err != nil {
			answered = answer{Error: err.Error()}
		}
		if err := answers.Encode(answered); err != nil {
			return err
		}
	}
	if err := questions.Err(); err != nil {
		return err
	}
	return output.Flush()
}

func (asked question) answer() (answer, error) {
	switch {
	case asked.Quantity != nil:
		return quantity(*asked.Quantity)
	case len(asked.Compare) == 2:
		return compare(asked.Compare[0], asked.Compare[1])
	case asked.Selector != nil:
		return selects(asked.Selector, asked.Labels)
	case asked.Env != nil:
		return expand(asked.Env), nil
	}
	return answer{}, fmt.Errorf("nothing is asked")
}

func quantity(text string) (answer, error) {
	parsed, err := resource.ParseQuantity(text)
	if err != nil {
		return answer{}, err
	}
	number, suffix := parsed.CanonicalizeBytes(nil)
	return answer{
		Canonical: string(number) + string(suffix),
		Sign:      parsed.Sign(),
		Value:     parsed.Value(),
		Millis:    parsed.MilliValue(),
	}, nil
}

func compare(one, other string) (answer, error) {
	left, err := resource.ParseQuantity(one)
	if err != nil {
		return answer{}, err
	}
	right, err := resource.ParseQuantity(other)
	if err != nil {
		return answer{}, err
	}
	return answer{Order: left.Cmp(right)}, nil
}

func selects(selector *metav1.LabelSelector, set map[string]string) (answer, error) {
	parsed, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		return answer{}, err
	}
	return answer{Matches: parsed.Matches(labels.Set(set))}, nil
}

// expand does with Kubernetes' expansion what the kubelet does with it in makeEnvironmentVariables, which is not
// exported, and in ExpandContainerCommandAndArgs.
func expand(asked *env) answer {
	variables := map[string]string{}
	for _, imported := range asked.Imported {
		variables[imported.Name] = imported.Value
	}
	mapping := expansion.MappingFuncFor(variables)
	for _, defined := range asked.Defined {
		value := ""
		if defined.Value != "" {
			value = expansion.Expand(defined.Value, mapping)
		} else if defined.Taken != nil {
			value = *defined.Taken
		}
		variables[defined.Name] = value
	}
	words := []string{}
	for _, word := range asked.Words {
		words = append(words, expansion.Expand(word, mapping))
	}
	return answer{Variables: variables, Words: words}
}
