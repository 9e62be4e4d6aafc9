// go run predicts.go URL BODY REPLY COUNT: so many POSTs of a file by net/http with its defaults.
package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func main() {
	body, err := os.ReadFile(os.Args[2])
	must(err)
	wanted, err := os.ReadFile(os.Args[3])
	must(err)
	count, err := strconv.Atoi(os.Args[4])
	must(err)
	for n := 0; n < count; n++ {
		reply, err := http.Post(os.Args[1], "application/json", bytes.NewReader(body))
		must(err)
		got, err := io.ReadAll(reply.Body)
		must(err)
		must(reply.Body.Close())
		if reply.StatusCode != 200 || !bytes.Equal(got, wanted) {
			panic(fmt.Sprint(n, ": ", reply.Status, " ", string(got)))
		}
	}
	fmt.Println("done")
}
