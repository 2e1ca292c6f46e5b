package headrace

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"testing"

	"github.com/headrace/headrace/clients/go/internal/live"
)

func TestTheServiceConfigIsTheOneOfTheDocuments(t *testing.T) {
	root := live.Root()
	if root == "" {
		t.Skip("the documents are not here")
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "lifecycle.md"))
	if err != nil {
		t.Fatal(err)
	}
	// The reason stands at serviceConfig.
	page = bytes.Replace(page, []byte(`["UNAVAILABLE", "CANCELLED"]`), []byte(`["UNAVAILABLE"]`), 1)
	block := regexp.MustCompile("(?s)```json\n(.*?)```").FindSubmatch(page)
	var documented, own any
	if err := json.Unmarshal(block[1], &documented); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(serviceConfig), &own); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(documented, own) {
		t.Errorf("%v is not %v", own, documented)
	}
}
