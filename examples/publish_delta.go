// Writes one delta file and drops it into a version's folder, where a server adopts it: docs/reference/delta-format.md in Go.
//
//	go run publish_delta.go -deltas repository/ctr/1/deltas -model ctr -version 1 -step 8 -parent 4 < changes.json
//
// changes.json: {"tables": {"user": {"dim": 2, "keys": [17, 4], "rows": [[0.1, 0.2], [0.3, 0.4]], "removed": [9]}},
// "dense": {"score/bias": {"shape": [1], "values": [0.5]}}}. The standard library alone.
package main

import (
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"hash/crc32"
	"log"
	"math"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"time"
	"unicode/utf16"
)

// Table is what changed of one table: rows[i], of dim numbers, is the row of keys[i].
type Table struct {
	Dim     int         `json:"dim"`
	Keys    []int64     `json:"keys"`
	Rows    [][]float32 `json:"rows"`
	Removed []int64     `json:"removed"`
}

// Weight is one dense weight, whole.
type Weight struct {
	Shape  []int     `json:"shape"`
	Values []float32 `json:"values"`
}

// Changes are what one delta carries.
type Changes struct {
	Tables map[string]Table  `json:"tables"`
	Dense  map[string]Weight `json:"dense"`
}

// Place says which delta it is: its step, and the step that it stands on.
type Place struct {
	Model                 string
	Version, Step, Parent int
}

type tensor struct {
	name, dtype, numpy string
	shape              []int
	data               []byte
}

func int64s(name string, values []int64) tensor {
	data := make([]byte, 0, 8*len(values))
	for _, value := range values {
		data = binary.LittleEndian.AppendUint64(data, uint64(value))
	}
	return tensor{name, "I64", "<i8", []int{len(values)}, data}
}

func float32s(name string, shape []int, values []float32) tensor {
	data := make([]byte, 0, 4*len(values))
	for _, value := range values {
		data = binary.LittleEndian.AppendUint32(data, math.Float32bits(value))
	}
	return tensor{name, "F32", "<f4", shape, data}
}

// quoted is a string as Python's json.dumps spells it: the checksum is over this very spelling.
func quoted(text string) string {
	var out strings.Builder
	out.WriteByte('"')
	for _, letter := range text {
		switch {
		case letter == '"' || letter == '\\':
			out.WriteByte('\\')
			out.WriteRune(letter)
		case letter == '\n':
			out.WriteString(`\n`)
		case letter == '\r':
			out.WriteString(`\r`)
		case letter == '\t':
			out.WriteString(`\t`)
		case letter == '\b':
			out.WriteString(`\b`)
		case letter == '\f':
			out.WriteString(`\f`)
		case letter >= ' ' && letter <= '~':
			out.WriteRune(letter)
		case letter > 0xffff:
			high, low := utf16.EncodeRune(letter)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&out, `\u%04x`, letter)
		}
	}
	out.WriteByte('"')
	return out.String()
}

// object is a JSON object with sorted keys, ", " between its members and ": " inside of them.
func object(members map[string]string) string {
	keys := make([]string, 0, len(members))
	for key := range members {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	parts := make([]string, 0, len(keys))
	for _, key := range keys {
		parts = append(parts, quoted(key)+": "+members[key])
	}
	return "{" + strings.Join(parts, ", ") + "}"
}

func sum(data []byte) string { return fmt.Sprintf("%08x", crc32.ChecksumIEEE(data)) }

func ints(values []int) string {
	parts := make([]string, len(values))
	for i, value := range values {
		parts[i] = strconv.Itoa(value)
	}
	return "[" + strings.Join(parts, ", ") + "]"
}

// Encode gives the bytes of a delta's file.
func Encode(place Place, changes Changes) ([]byte, error) {
	var tensors []tensor
	rows, removed := 0, 0
	for name, table := range changes.Tables {
		if len(table.Keys) != len(table.Rows) {
			return nil, fmt.Errorf("table %s: %d keys and %d rows", name, len(table.Keys), len(table.Rows))
		}
		values := []float32{}
		for _, row := range table.Rows {
			if len(row) != table.Dim {
				return nil, fmt.Errorf("table %s: rows of %d numbers wanted, got %d", name, table.Dim, len(row))
			}
			values = append(values, row...)
		}
		rows, removed = rows+len(table.Keys), removed+len(table.Removed)
		tensors = append(tensors,
			int64s("tables/"+name+"/keys", table.Keys),
			int64s("tables/"+name+"/removed", table.Removed),
			float32s("tables/"+name+"/rows", []int{len(table.Keys), table.Dim}, values))
	}
	for name, weight := range changes.Dense {
		tensors = append(tensors, float32s("dense/"+name, weight.Shape, weight.Values))
	}

	sums, shapes := map[string]string{}, map[string]string{}
	for _, one := range tensors {
		sums[one.name] = quoted(sum(one.data))
		shapes[one.name] = "[" + quoted(one.numpy) + ", " + ints(one.shape) + "]"
	}
	metadata := map[string]string{
		"format":       "freshet-delta/1",
		"model":        place.Model,
		"version":      strconv.Itoa(place.Version),
		"step":         strconv.Itoa(place.Step),
		"parent_step":  strconv.Itoa(place.Parent),
		"compacted":    "0",
		"published_at": strconv.FormatFloat(float64(time.Now().UnixNano())/1e9, 'f', 6, 64),
		"event_time":   "[]",
		"events":       "0",
		"counts":       fmt.Sprintf(`{"rows": %d, "removed": %d, "dense": %d}`, rows, removed, len(changes.Dense)),
		"checksums":    object(sums),
	}
	spelled := map[string]string{}
	for key, value := range metadata {
		spelled[key] = quoted(value)
	}
	metadata["checksum"] = sum([]byte("[" + object(spelled) + ", " + object(shapes) + "]"))

	header, at := map[string]any{"__metadata__": metadata}, 0
	for _, one := range tensors {
		header[one.name] = map[string]any{
			"dtype": one.dtype, "shape": one.shape, "data_offsets": []int{at, at + len(one.data)},
		}
		at += len(one.data)
	}
	text, err := json.Marshal(header)
	if err != nil {
		return nil, err
	}
	// Blanks, so that the tensors begin at a multiple of 64 bytes: not asked for, but read without a copy.
	for (len(text)+8)%64 != 0 {
		text = append(text, ' ')
	}
	data := append(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), text...)
	for _, one := range tensors {
		data = append(data, one.data...)
	}
	return data, nil
}

// Drop puts the file under its name, whole: written beside it under a hidden name, made durable, then linked, which
// fails where the step is taken.
func Drop(folder string, step int, data []byte) error {
	file, err := os.CreateTemp(folder, ".delta-*.tmp")
	if err != nil {
		return err
	}
	defer os.Remove(file.Name())
	if _, err = file.Write(data); err == nil {
		err = file.Sync()
	}
	if closed := file.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return err
	}
	if err = os.Chmod(file.Name(), 0o644); err != nil {
		return err
	}
	return os.Link(file.Name(), filepath.Join(folder, strconv.Itoa(step)+".safetensors"))
}

func main() {
	deltas := flag.String("deltas", "", "the version's folder of deltas")
	model := flag.String("model", "", "the model's name")
	version := flag.Int("version", 1, "its version")
	step := flag.Int("step", 0, "the next step of the chain")
	parent := flag.Int("parent", 0, "the step that is served")
	flag.Parse()
	var changes Changes
	if err := json.NewDecoder(os.Stdin).Decode(&changes); err != nil {
		log.Fatal(err)
	}
	data, err := Encode(Place{*model, *version, *step, *parent}, changes)
	if err == nil {
		err = Drop(*deltas, *step, data)
	}
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s %d.%d: %d bytes\n", *model, *version, *step, len(data))
}
