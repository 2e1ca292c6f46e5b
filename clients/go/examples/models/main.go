// Command models lists what is served.
package main

import (
	"context"
	"fmt"
	"log"

	headrace "github.com/headrace/headrace/clients/go"
)

func main() {
	client, err := headrace.New("127.0.0.1:50051")
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	models, err := client.Models(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	for _, model := range models {
		fmt.Println(model.GetId(), model.GetAliases(), model.GetState(), model.GetMaxContextTokens(), model.GetCapabilities())
	}
}
