// Scores one request, from a file, and writes the reply to another:
//
//	CGO_LDFLAGS="-L. -lfreshet -Wl,-rpath,$PWD" go run example.go '{"repository": "/models"}' request reply
package main

// #include <stdlib.h>
// #include "freshet.h"
import "C"

import (
	"fmt"
	"os"
	"unsafe"
)

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: example CONFIG REQUEST REPLY")
		os.Exit(2)
	}
	request, err := os.ReadFile(os.Args[2])
	if err != nil || len(request) == 0 {
		fmt.Fprintln(os.Stderr, "cannot read the request:", err)
		os.Exit(1)
	}
	entry, config := C.CString(""), C.CString(os.Args[1])
	defer C.free(unsafe.Pointer(entry))
	defer C.free(unsafe.Pointer(config))
	var state C.int
	model := C.initialize(entry, config, &state)
	if state != 0 {
		os.Exit(1)
	}
	var reply unsafe.Pointer
	var size C.int
	status := C.process(model, unsafe.Pointer(&request[0]), C.int(len(request)), &reply, &size)
	data := C.GoBytes(reply, size)
	C.free(reply)
	C.freshet_close(model)
	if status != 200 {
		fmt.Fprintf(os.Stderr, "status %d: %s\n", status, data)
		os.Exit(1)
	}
	if err := os.WriteFile(os.Args[3], data, 0o644); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
