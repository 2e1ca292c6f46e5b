// Command secure connects over TLS, with a key of the environment and, if there is one, a client certificate.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"time"

	headrace "github.com/headrace/headrace/clients/go"
)

func main() {
	config, err := headrace.TLSFiles{
		CA:   os.Getenv("CA"),   // empty: the system's
		Cert: os.Getenv("CERT"), // of the client, for mutual TLS
		Key:  os.Getenv("CERT_KEY"),
	}.Config()
	if err != nil {
		log.Fatal(err)
	}
	client, err := headrace.New("127.0.0.1:50051",
		headrace.WithTLS(config),
		headrace.WithAPIKey(os.Getenv("HEADRACE_API_KEY")),
		headrace.WithKeepalive(30*time.Second), // towards a Headrace service; others may allow only one in 5 minutes
	)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	model, err := client.DefaultModel(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(model)
}
