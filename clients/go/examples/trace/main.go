// Command trace sends a W3C trace context with each call, without OpenTelemetry.
package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"log"

	headrace "github.com/headrace/headrace/clients/go"
)

type spanKey struct{}

func main() {
	client, err := headrace.New("127.0.0.1:50051", headrace.WithHeaders(traceContext))
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	var ids [24]byte
	_, _ = rand.Read(ids[:])
	ctx := context.WithValue(context.Background(), spanKey{}, fmt.Sprintf("00-%x-%x-01", ids[:16], ids[16:]))
	request := headrace.NewRequest("default", headrace.Prompt("The river"), headrace.MaxOutputTokens(8))
	generation := client.Generate(ctx, request)
	if _, err := generation.Text(); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("trace %x, request %s\n", ids[:16], generation.RequestID())
	fmt.Println(generation.Trailer().Get("server-timing"))
}

func traceContext(ctx context.Context) map[string]string {
	parent, ok := ctx.Value(spanKey{}).(string)
	if !ok {
		return nil
	}
	return map[string]string{"traceparent": parent}
}
